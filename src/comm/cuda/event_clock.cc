#include "comm/cuda/event_clock.h"

#include <cmath>

#include "comm/cuda/check.h"
#include "lockstep/base/clock.h"

namespace lockstep::cuda {
namespace {

// CUDA tells the time between events as a float of milliseconds: a microsecond is lost after 16 s.
constexpr std::int64_t kRenewAfter_ns = 8'000'000'000;

}  // namespace

void EventClock::renew(Base& base, int index) {
  const OnDevice on(index);
  if (base.stream == nullptr)
    check(cudaStreamCreateWithFlags(&base.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", index);
  if (base.event == nullptr) check(cudaEventCreate(&base.event), "cudaEventCreate", index);
  check(cudaEventRecord(base.event, base.stream), "cudaEventRecord", index);
  // Nothing else is ever on that stream: the wait is that of one launch, eight seconds apart at least.
  check(cudaEventSynchronize(base.event), "cudaEventSynchronize", index);
  base.at_ns = now_ns();
}

std::optional<std::int64_t> EventClock::time_of(cudaEvent_t event, int index) {
  const std::lock_guard lock(mutex_);
  Base& base = bases_[index];
  if (base.at_ns == 0 || now_ns() - base.at_ns > kRenewAfter_ns) renew(base, index);
  float after_ms = 0;
  if (cudaEventElapsedTime(&after_ms, base.event, event) != cudaSuccess) {
    (void)cudaGetLastError();
    return std::nullopt;
  }
  return base.at_ns + static_cast<std::int64_t>(std::llround(static_cast<double>(after_ms) * 1e6));
}

}  // namespace lockstep::cuda
