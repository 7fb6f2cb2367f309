#include "comm/cuda/runtime.h"

#include <algorithm>
#include <thread>

#include "comm/cuda/check.h"
#include "comm/cuda/streams.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::cuda {
namespace {

constexpr std::chrono::microseconds kSpin{200};  // then the host sleeps between looks at an event
constexpr std::chrono::microseconds kPollInterval{50};
constexpr std::chrono::milliseconds kLookInterval{20};  // at who put it there

cudaStream_t handle_of(const DeviceStream& stream) { return static_cast<cudaStream_t>(stream.handle); }

std::string bytes_text(std::size_t bytes) { return std::to_string(bytes) + " bytes"; }

}  // namespace

// Goes back to the pool with the last handle. Streams that were told to wait for it have noted the point.
struct CudaRuntime::Event {
  cudaEvent_t event = nullptr;
  int index = 0;
  cudaStream_t stream = nullptr;  // on which it was recorded
  Event(cudaEvent_t e, int i, cudaStream_t s) : event(e), index(i), stream(s) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    CudaRuntime& runtime = get();
    const std::lock_guard lock(runtime.mutex_);
    runtime.events_[index].push_back(event);
  }
};

CudaRuntime& CudaRuntime::get() {
  static CudaRuntime& runtime = *new CudaRuntime;
  return runtime;
}

CudaRuntime::CudaRuntime() { add_device_runtime(Device::Kind::cuda, *this); }

std::shared_ptr<void> CudaRuntime::allocate(std::size_t bytes, int index) {
  constexpr std::size_t kLeast = 256;  // nothing is no memory, but has an address of its own
  const std::size_t rounded = std::max(bytes, kLeast);
  void* const data = take(rounded, index, "memory");
  std::shared_ptr<void> owner(data, [rounded, index](void* p) { get().give_back(p, rounded, index); });
  fill(data, std::byte{0}, rounded, current_stream(index));
  return owner;
}

void* CudaRuntime::take(std::size_t bytes, int index, const char* what) {
  reap();
  const OnDevice on(index);
  void* data = nullptr;
  const cudaError_t result = cudaMalloc(&data, bytes);
  if (result == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw DeviceError("no " + std::string(what) + " of " + bytes_text(bytes) +
                      " on cuda:" + std::to_string(index) + ": " + who_has_it(index));
  }
  check(result, "cudaMalloc of " + bytes_text(bytes), index);
  const std::lock_guard lock(mutex_);
  taken_[index] += bytes;
  return data;
}

std::string CudaRuntime::who_has_it(int index) {
  std::size_t left = 0;
  std::size_t whole = 0;
  if (cudaMemGetInfo(&left, &whole) != cudaSuccess) (void)cudaGetLastError();
  const std::lock_guard lock(mutex_);
  std::size_t leaving = 0;
  for (const Leaving& one : leaving_)
    if (one.index == index) leaving += one.bytes;
  return bytes_text(left) + " of " + bytes_text(whole) + " are free; comm memory of this process has " +
         bytes_text(taken_[index]) + ", of which " + bytes_text(leaving) +
         " go when the streams are done with them; the rest is libtorch's, the program's, or of other "
         "processes";
}

std::size_t CudaRuntime::taken_bytes(int index) {
  reap();
  const std::lock_guard lock(mutex_);
  return taken_[index];
}

std::vector<DeviceEvent> CudaRuntime::record_all(int index) {
  std::vector<DeviceEvent> events;
  const OnDevice on(index);
  for (const cudaStream_t stream : seen_streams(index)) {
    const cudaError_t state = cudaStreamQuery(stream);
    if (state == cudaSuccess) continue;
    if (state != cudaErrorNotReady) check(state, "cudaStreamQuery", index);
    (void)cudaGetLastError();
    events.push_back(record({{Device::Kind::cuda, index}, stream}));
  }
  return events;
}

void CudaRuntime::give_back(void* data, std::size_t bytes, int index) noexcept try {
  if (int device = 0; cudaGetDevice(&device) == cudaErrorCudartUnloading) return;  // the process ends
  std::vector<DeviceEvent> until = record_all(index);
  if (until.empty()) return free(data, bytes, index);
  const std::lock_guard lock(mutex_);
  leaving_.push_back({data, bytes, index, std::move(until)});
  any_leaving_ = true;
} catch (const std::exception& problem) {
  // The device failed, or the process ends: it goes with the process.
  log().warn("{} bytes of comm memory on cuda:{} stay until this process ends: {}", bytes, index,
             problem.what());
}

void CudaRuntime::free(void* data, std::size_t bytes, int index) noexcept try {
  {
    const std::lock_guard lock(mutex_);
    taken_[index] -= bytes;
  }
  const OnDevice on(index);
  check(cudaFree(data), "cudaFree of " + bytes_text(bytes), index);
} catch (const std::exception& problem) {
  log().warn("{}", problem.what());
}

void CudaRuntime::reap() noexcept {
  if (!any_leaving_) return;
  std::vector<Leaving> over;
  std::vector<Leaving> still;
  try {
    const std::lock_guard lock(mutex_);
    over.reserve(leaving_.size());
    still.reserve(leaving_.size());
    for (Leaving& one : leaving_) {
      const bool is_over = std::ranges::all_of(one.until, [](const DeviceEvent& event) {
        return cudaEventQuery(static_cast<const Event*>(event.handle.get())->event) == cudaSuccess;
      });
      (is_over ? over : still).push_back(std::move(one));
    }
    leaving_.swap(still);  // its events are let go outside the lock, which they take
    any_leaving_ = !leaving_.empty();
  } catch (const std::exception&) {  // no memory: later
  }
  (void)cudaGetLastError();  // cudaErrorNotReady
  for (const Leaving& one : over) free(one.data, one.bytes, one.index);
}

DeviceStream CudaRuntime::current_stream(int index) {
  return {{Device::Kind::cuda, index}, cuda::current_stream(index)};
}

void CudaRuntime::use_own_stream(int index) { cuda::use_own_stream(index); }

void CudaRuntime::copy(void* to, const void* from, std::size_t bytes, const DeviceStream& stream) {
  if (bytes == 0) return;
  const OnDevice on(stream.device.index);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle_of(stream)),
        "cudaMemcpyAsync of " + bytes_text(bytes), stream.device.index);
}

void CudaRuntime::fill(void* to, std::byte value, std::size_t bytes, const DeviceStream& stream) {
  if (bytes == 0) return;
  const OnDevice on(stream.device.index);
  check(cudaMemsetAsync(to, static_cast<int>(value), bytes, handle_of(stream)),
        "cudaMemsetAsync of " + bytes_text(bytes), stream.device.index);
}

cudaEvent_t CudaRuntime::new_event(int index) {
  {
    const std::lock_guard lock(mutex_);
    std::vector<cudaEvent_t>& spare = events_[index];
    if (!spare.empty()) {
      const cudaEvent_t event = spare.back();
      spare.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate", index);  // with its time: WorkTiming
  return event;
}

DeviceEvent CudaRuntime::record(const DeviceStream& stream) {
  reap();
  const int index = stream.device.index;
  const OnDevice on(index);
  auto event = std::make_shared<Event>(new_event(index), index, handle_of(stream));
  check(cudaEventRecord(event->event, event->stream), "cudaEventRecord", index);
  return {stream.device, std::move(event)};
}

void CudaRuntime::wait(const DeviceStream& stream, const DeviceEvent& event) {
  if (!event) return;
  const auto* const point = static_cast<const Event*>(event.handle.get());
  // In whose order it is; the default streams of all GPUs have one handle.
  if (point->stream == handle_of(stream) && point->index == stream.device.index) return;
  const OnDevice on(stream.device.index);
  check(cudaStreamWaitEvent(handle_of(stream), point->event, 0), "cudaStreamWaitEvent", stream.device.index);
  const std::lock_guard lock(mutex_);
  for (const Looks* const looks : {&looks_behind_, &looks_})  // its own before what it came behind itself
    if (const auto at = looks->find(point->stream); at != looks->end() && !at->second.expired())
      looks_behind_[handle_of(stream)] = at->second;
}

bool CudaRuntime::passed(const DeviceEvent& event) {
  if (!event) return true;
  const auto* const mine = static_cast<const Event*>(event.handle.get());
  const OnDevice on(mine->index);
  const cudaError_t state = cudaEventQuery(mine->event);
  if (state == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  check(state, "cudaEventQuery", mine->index);
  return true;
}

std::optional<std::int64_t> CudaRuntime::time_of(const DeviceEvent& event) {
  if (!event || !passed(event)) return std::nullopt;
  const auto* const mine = static_cast<const Event*>(event.handle.get());
  return clock_.time_of(mine->event, mine->index);
}

void CudaRuntime::watch(const DeviceStream& stream, std::weak_ptr<const std::function<void(bool)>> look) {
  const std::lock_guard lock(mutex_);
  looks_[handle_of(stream)] = std::move(look);
}

void CudaRuntime::look(const DeviceEvent& event, bool has_passed) {
  std::vector<std::shared_ptr<const std::function<void(bool)>>> all;
  {
    const std::lock_guard lock(mutex_);
    for (const Looks* const looks : {&looks_, &looks_behind_}) {
      if (has_passed && looks == &looks_behind_) continue;
      const auto at = looks->find(static_cast<const Event*>(event.handle.get())->stream);
      if (at != looks->end()) all.push_back(at->second.lock());
    }
  }
  for (const auto& who : all)
    if (who != nullptr) (*who)(has_passed);
}

bool CudaRuntime::wait_on_host(const DeviceEvent& event, std::chrono::milliseconds timeout) {
  if (!event) return true;
  const std::int64_t begin = now_ns();
  const Deadline deadline = Deadline::after(timeout);
  std::int64_t look_ns = begin + std::chrono::nanoseconds(kLookInterval).count();
  while (!passed(event)) {
    if (deadline.passed()) return false;
    const std::int64_t now = now_ns();
    if (now - begin < std::chrono::nanoseconds(kSpin).count()) continue;
    std::this_thread::sleep_for(kPollInterval);
    if (now < look_ns) continue;
    look_ns = now + std::chrono::nanoseconds(kLookInterval).count();
    if (!passed(event)) look(event, false);
  }
  look(event, true);
  return true;
}

}  // namespace lockstep::cuda

extern "C" const bool lockstep_cuda_is_linked;
const bool lockstep_cuda_is_linked = (lockstep::cuda::CudaRuntime::get(), true);
