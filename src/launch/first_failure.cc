#include "launch/first_failure.h"

#include <csignal>

namespace lockstep::launcher {
namespace {

constexpr double kWindowSeconds = 0.1;

bool is_hard(const WorkerEnd& end) {
  return end.signal != 0 && end.signal != SIGABRT && end.signal != SIGPIPE && end.signal != SIGTERM;
}

}  // namespace

std::optional<int> first_failure(const std::vector<WorkerEnd>& ends) {
  const WorkerEnd* first = nullptr;
  double window_end = 0;
  for (const WorkerEnd& end : ends) {
    if (!end.failed() || end.stopped) continue;
    if (first == nullptr) {
      first = &end;
      window_end = end.seconds + kWindowSeconds;
    } else if (end.seconds <= window_end && is_hard(end) && !is_hard(*first)) {
      first = &end;
    }
  }
  if (first == nullptr) return std::nullopt;
  return first->rank;
}

}  // namespace lockstep::launcher
