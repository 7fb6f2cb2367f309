// CUDA's runtime on the processor, as far as comm/cuda and the engine ipc call it: one GPU, whose streams
// hold pieces of work that a thread does one by one. Which stream is next is drawn, and some are left alone
// for a while, so that work which nothing orders runs in orders that a GPU may or may not show. A copy from
// host memory is taken at once, as CUDA does; memory that is freed loses its content. Numbers in memory are
// waited for and written by streams, and by the host behind the card's back.
#include "cuda/emulated/card.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/cuda/reduce.h"

namespace lockstep::emulated {
namespace {

// A point in a stream. Who waits for an event waits for where it was recorded last until then.
struct Point {
  bool passed = false;
};
struct Event {
  std::shared_ptr<Point> last;
};

struct Piece {
  std::function<void()> run = {};  // without the lock
  std::shared_ptr<const Point> waits = {};
  std::function<bool()> until = {};  // the numbers that it waits for are there
  std::shared_ptr<Point> passes = {};
  std::uint64_t number = 0;  // in the order in which they were put on streams

  bool can_go() const { return (waits == nullptr || waits->passed) && (!until || until()); }
};

std::atomic<bool> has_memory_ops = true;
std::atomic<bool> takes_host_memory = true;
std::atomic<bool> one_queue = false;
std::atomic<unsigned long> memory_ops_put = 0;

struct Stream {
  std::deque<Piece> pieces;
  int rank = 0;  // the higher the sooner
};

class Card {
 public:
  static Card& get() {
    static Card& card = *new Card;
    return card;
  }

  void put(cudaStream_t stream, Piece piece) {
    const std::lock_guard lock(mutex_);
    piece.number = ++pieces_;
    reinterpret_cast<Stream*>(stream)->pieces.push_back(std::move(piece));
    changed_.notify_one();
  }
  void record(Event& event, cudaStream_t stream) {
    auto point = std::make_shared<Point>();
    {
      const std::lock_guard lock(mutex_);
      event.last = point;
    }
    put(stream, {.passes = std::move(point)});
  }
  void wait(cudaStream_t stream, const Event& event) {
    std::shared_ptr<const Point> point;
    {
      const std::lock_guard lock(mutex_);
      point = event.last;
    }
    put(stream, {.waits = std::move(point)});
  }
  bool passed(const Event& event) {
    const std::lock_guard lock(mutex_);
    return event.last == nullptr || event.last->passed;
  }
  bool idle(cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    return reinterpret_cast<Stream*>(stream)->pieces.empty();
  }
  cudaStream_t new_stream() {
    const std::lock_guard lock(mutex_);
    streams_.push_back(std::make_unique<Stream>());
    return reinterpret_cast<cudaStream_t>(streams_.back().get());
  }

  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    void* const data = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (data != nullptr) memory_[static_cast<std::byte*>(data)] = bytes;
    return data;
  }
  void free(void* data) {
    const std::lock_guard lock(mutex_);
    const auto at = memory_.find(static_cast<std::byte*>(data));
    std::memset(data, 0xDB, at->second);
    memory_.erase(at);
    std::free(data);
  }
  bool has(const void* data) {
    const std::lock_guard lock(mutex_);
    const auto at = memory_.upper_bound(static_cast<std::byte*>(const_cast<void*>(data)));
    return at != memory_.begin() && data < std::prev(at)->first + std::prev(at)->second;
  }

 private:
  Card() {
    std::thread([this] { serve(); }).detach();
  }

  // The stream whose first piece is done next; null: none can be.
  Stream* next() const {
    Stream* chosen = nullptr;
    if (one_queue) {
      for (const auto& stream : streams_)
        if (!stream->pieces.empty() &&
            (chosen == nullptr || stream->pieces.front().number < chosen->pieces.front().number))
          chosen = stream.get();
      return chosen != nullptr && chosen->pieces.front().can_go() ? chosen : nullptr;
    }
    for (const auto& stream : streams_)
      if (!stream->pieces.empty() && stream->pieces.front().can_go() &&
          (chosen == nullptr || stream->rank > chosen->rank))
        chosen = stream.get();
    return chosen;
  }

  void serve() {
    std::mt19937 draw(1);  // NOLINT: the same streams' luck each time
    std::unique_lock lock(mutex_);
    for (unsigned done = 0;; ++done) {
      Stream* chosen = nullptr;
      if (done % 16 == 0)
        for (const auto& stream : streams_) stream->rank = static_cast<int>(draw() % 1000);
      // Numbers change without a word.
      while ((chosen = next()) == nullptr) changed_.wait_for(lock, std::chrono::milliseconds(1));
      if (done % 64 == 0) {  // so that the host gets ahead
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        lock.lock();
      }
      const std::function<void()> run = std::move(chosen->pieces.front().run);
      if (run) {
        lock.unlock();
        run();
        lock.lock();
      }
      if (const Piece& over = chosen->pieces.front(); over.passes != nullptr) over.passes->passed = true;
      chosen->pieces.pop_front();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<std::byte*, std::size_t> memory_;
  std::uint64_t pieces_ = 0;
};

Event& of(cudaEvent_t event) { return *reinterpret_cast<Event*>(event); }

std::atomic<std::uint64_t>& number_at(CUdeviceptr address) {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(address);
}

CUresult get_device(CUdevice* gpu, int index) { return *gpu = index, CUDA_SUCCESS; }
CUresult get_attribute(int* value, CUdevice_attribute, CUdevice) {
  return *value = has_memory_ops ? 1 : 0, CUDA_SUCCESS;
}
CUresult get_error_name(CUresult, const char** name) { return *name = "emulated", CUDA_SUCCESS; }
CUresult write_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned) {
  ++memory_ops_put;
  Card::get().put(stream, {.run = [=] { number_at(address).store(value); }});
  return CUDA_SUCCESS;
}
CUresult batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned) {
  ++memory_ops_put;
  std::vector<std::pair<CUdeviceptr, std::uint64_t>> waits;
  for (unsigned i = 0; i < count; ++i) {
    const auto& wait = operations[i].waitValue;
    if (wait.operation != CU_STREAM_MEM_OP_WAIT_VALUE_64 || wait.flags != CU_STREAM_WAIT_VALUE_GEQ)
      return CUDA_ERROR_NOT_SUPPORTED;
    waits.emplace_back(wait.address, wait.value64);
  }
  Card::get().put(stream, {.until = [waits = std::move(waits)] {
                    return std::ranges::all_of(waits, [](const auto& wait) {
                      return static_cast<std::int64_t>(number_at(wait.first).load() - wait.second) >= 0;
                    });
                  }});
  return CUDA_SUCCESS;
}

// Twice the same is refused, as by CUDA.
std::mutex registered_mutex;
std::set<void*> registered;

}  // namespace

void have_memory_ops(bool yes) { has_memory_ops = yes; }
void register_host_memory(bool yes) { takes_host_memory = yes; }
void share_one_queue(bool yes) { one_queue = yes; }
unsigned long memory_ops() { return memory_ops_put; }

}  // namespace lockstep::emulated

using lockstep::emulated::Card;
using lockstep::emulated::of;

extern "C" {
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
const char* cudaGetErrorName(cudaError_t) { return "emulated"; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaErrorNotSupported; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return *stream = Card::get().new_stream(), cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = Card::get().new_stream(), cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return Card::get().idle(stream) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return Card::get().wait(stream, of(event)), cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new lockstep::emulated::Event);  // for ever, as the pools' are
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Card::get().record(of(event), stream), cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Card::get().passed(of(event)) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  while (!Card::get().passed(of(event))) std::this_thread::yield();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { return *ms = 0, cudaSuccess; }
cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  *data = bytes < (std::size_t{1} << 32) ? Card::get().allocate(bytes) : nullptr;
  return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* data) { return Card::get().free(data), cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* left, std::size_t* whole) {
  *left = *whole = std::size_t{1} << 32;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  std::shared_ptr<std::byte[]> taken;
  if (!Card::get().has(from)) {
    taken = std::shared_ptr<std::byte[]>(new std::byte[bytes]);
    std::memcpy(taken.get(), from, bytes);
  }
  Card::get().put(stream, {.run = [=] { std::memmove(to, taken ? taken.get() : from, bytes); }});
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  Card::get().put(stream, {.run = [=] { std::memset(to, value, bytes); }});
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* data, std::size_t, unsigned) {
  if (!lockstep::emulated::takes_host_memory) return cudaErrorNotSupported;
  const std::lock_guard lock(lockstep::emulated::registered_mutex);
  return lockstep::emulated::registered.insert(data).second ? cudaSuccess
                                                            : cudaErrorHostMemoryAlreadyRegistered;
}
cudaError_t cudaHostUnregister(void* data) {
  const std::lock_guard lock(lockstep::emulated::registered_mutex);
  return lockstep::emulated::registered.erase(data) == 1 ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}
cudaError_t cudaHostGetDevicePointer(void** seen, void* data, unsigned) { return *seen = data, cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  using namespace lockstep::emulated;
  const std::map<std::string, void*> functions{
      {"cuDeviceGet", reinterpret_cast<void*>(&get_device)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(&get_attribute)},
      {"cuGetErrorName", reinterpret_cast<void*>(&get_error_name)},
      {"cuStreamWriteValue64", reinterpret_cast<void*>(&write_value)},
      {"cuStreamBatchMemOp", reinterpret_cast<void*>(&batch)}};
  const auto at = functions.find(name);
  *function = at == functions.end() ? nullptr : at->second;
  *found = at == functions.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
// Ranks are threads here: nobody opens a handle.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void*) { return *handle = {}, cudaSuccess; }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t) {
  return *handle = {}, cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) { return cudaErrorNotSupported; }
cudaError_t cudaIpcCloseMemHandle(void*) { return cudaErrorNotSupported; }
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) { return cudaErrorNotSupported; }
}

void lockstep::cuda::reduce_tree(std::span<void* const> outs, std::span<const void* const> ins,
                                 std::size_t count, const kernel::Reduction& reduction,
                                 const DeviceStream& stream) {
  if (outs.empty() || count == 0) return;
  Card::get().put(
      static_cast<cudaStream_t>(stream.handle),
      {.run = [to = std::vector(outs.begin(), outs.end()), from = std::vector(ins.begin(), ins.end()), count,
               reduction] { kernel::reduce_tree(to, from, count, reduction); }});
}
