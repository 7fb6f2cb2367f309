#include "comm/engine/nccl_link.h"

#include <utility>

#include "base/seconds_text.h"
#include "base/start_thread.h"
#include "comm/cuda/check.h"
#include "comm/cuda/runtime.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kLookInterval{20};
constexpr std::chrono::microseconds kPollInterval{50};
// For another thread inside one of NCCL's functions, which do not wait for anybody, to come back.
constexpr std::chrono::seconds kPatience{5};
constexpr std::chrono::seconds kLastCall{60};

}  // namespace

ncclUniqueId NcclLink::make_id() {
  ncclUniqueId id;
  if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
    throw SystemError(std::string("ncclGetUniqueId: ") + ncclGetErrorString(result) + " " +
                      one_line(ncclGetLastError(nullptr)));
  return id;
}

NcclLink::NcclLink(Facts facts, const ncclUniqueId& id, std::chrono::milliseconds timeout)
    : facts_(std::move(facts)) {
  const cuda::OnDevice on(facts_.index);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const std::string call = "ncclCommInitRankConfig";
  try {
    settle(ncclCommInitRankConfig(&comm_, facts_.size, id, facts_.rank, &config), call,
           Deadline::after(timeout));
    thread_ = start_thread("the thread that watches NCCL", [this] { serve(); });
  } catch (const Error& error) {
    abort(error);
    throw;
  }
}

NcclLink::~NcclLink() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  try {
    const cuda::OnDevice on(facts_.index);
    const Deadline patience = Deadline::after(kLastCall);
    while (!failure_.any() && last_ && !cuda::CudaRuntime::get().passed(last_)) {
      look();
      if (patience.passed()) abort(TimeoutError({}, "the last call has not ended"));
      std::this_thread::sleep_for(kPollInterval);
    }
    if (failure_.any()) return;  // aborted, which freed it
    settle(ncclCommFinalize(comm_), "ncclCommFinalize", Deadline::after(kPatience));
    ncclCommDestroy(comm_);
  } catch (const Error& error) {
    abort(error);
    log().debug("{}: {}", facts_.who, error.what());
  }
}

std::string NcclLink::text(ncclResult_t result, const std::string& call) const {
  const char* const last = comm_ == nullptr ? nullptr : ncclGetLastError(comm_);
  return call + " on " + facts_.who + ", cuda:" + std::to_string(facts_.index) + ": " +
         ncclGetErrorString(result) + (last != nullptr && *last != '\0' ? ": " + one_line(last) : "");
}

void NcclLink::fail(ncclResult_t result, const std::string& call) {
  facts_.news();  // what the carrier knows of it goes before what NCCL says
  if (result == ncclRemoteError) throw PeerError(-1, text(result, call));
  throw SystemError(text(result, call));
}

void NcclLink::settle(ncclResult_t result, const std::string& call, const Deadline& deadline) {
  std::int64_t next_ns = now_ns() + std::chrono::nanoseconds(kLookInterval).count();
  while (result == ncclInProgress) {
    check();
    if (deadline.passed())
      throw TimeoutError(
          {}, call + " on " + facts_.who + " has not ended in time; missing: unknown, NCCL does not say");
    if (now_ns() >= next_ns) {
      facts_.news();
      next_ns = now_ns() + std::chrono::nanoseconds(kLookInterval).count();
    }
    std::this_thread::sleep_for(kPollInterval);
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    result = asked == ncclSuccess ? state : asked;
  }
  if (result != ncclSuccess) fail(result, call);
}

void NcclLink::put(const std::string& call, std::chrono::milliseconds timeout,
                   const std::function<ncclResult_t()>& body) {
  const std::lock_guard lock(calling_);
  check();
  const cuda::OnDevice on(facts_.index);
  settle(body(), call, Deadline::after(timeout));
}

void NcclLink::put_group(const std::string& call, std::chrono::milliseconds timeout,
                         const std::function<ncclResult_t()>& body) {
  put(call, timeout, [&] {
    if (const ncclResult_t result = ncclGroupStart(); result != ncclSuccess) return result;
    const ncclResult_t inner = body();
    const ncclResult_t end = ncclGroupEnd();
    return inner != ncclSuccess && inner != ncclInProgress ? inner : end;
  });
}

void NcclLink::watch(DeviceEvent end, std::string where, std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  last_ = std::move(end);
  where_ = std::move(where);
  timeout_ = timeout;
  deadline_ = Deadline::after(timeout);
}

void NcclLink::abort(const Error& why) noexcept {
  failure_.keep(record_of(why));
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(aborted_, true) || comm_ == nullptr) return;
  }
  // Without the lock where the other thread does not come back: that is what an abort is for.
  std::unique_lock patient(calling_, kPatience);
  if (const ncclResult_t result = ncclCommAbort(comm_); result != ncclSuccess && result != ncclInProgress)
    log().warn("ncclCommAbort on {}: {}", facts_.who, ncclGetErrorString(result));
}

void NcclLink::serve() {
  std::unique_lock lock(mutex_);
  while (!stopping_ && !aborted_) {
    changed_.wait_for(lock, kLookInterval);
    if (stopping_ || aborted_) break;
    lock.unlock();
    look();
    lock.lock();
  }
}

// Not while something of the caller's is on its way to NCCL: there the caller looks.
void NcclLink::look() {
  DeviceEvent last;
  std::string where;
  Deadline deadline = Deadline::never();
  std::chrono::milliseconds timeout{0};
  {
    const std::lock_guard lock(mutex_);
    last = last_;
    where = where_;
    deadline = deadline_;
    timeout = timeout_;
  }
  try {
    if (!last || cuda::CudaRuntime::get().passed(last)) return;
    {
      const std::unique_lock calling(calling_, std::try_to_lock);
      if (!calling.owns_lock()) return;
      if (failure_.any()) return;  // aborted, which freed it
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
      const ncclResult_t result = asked == ncclSuccess ? state : asked;
      if (result != ncclSuccess && result != ncclInProgress) fail(result, where);
    }
    facts_.news();
    if (deadline.passed())
      throw TimeoutError({}, where + " on " + facts_.who +
                                 " has not ended on cuda:" + std::to_string(facts_.index) + " within " +
                                 seconds_text(timeout) + "; missing: unknown, NCCL does not say");
  } catch (const Error& error) {
    abort(error);
  }
}

}  // namespace lockstep
