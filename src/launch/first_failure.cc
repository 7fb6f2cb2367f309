#include "launch/first_failure.h"

#include <csignal>

namespace lockstep::launcher {
namespace {

bool is_hard(const Failure& failure) {
  const int signal = failure.end.signal;
  return failure.kind != Failure::Kind::worker ||
         (signal != 0 && signal != SIGABRT && signal != SIGPIPE && signal != SIGTERM);
}

// How long after `first`, which may be a mere consequence, `later` may be seen and still be the cause.
double window_seconds(const Failure& first, const Failure& later) {
  switch (later.kind) {
    case Failure::Kind::worker: return later.node == first.node ? 0.1 : 0.25;
    case Failure::Kind::interrupted: return 1;
    case Failure::Kind::lost: return later.node == first.node ? 0 : 10;
  }
  return 0;
}

}  // namespace

std::optional<Failure> first_failure(const std::vector<Failure>& failures) {
  const Failure* first = nullptr;
  double begin = 0;
  for (const Failure& failure : failures) {
    const bool worker = failure.kind == Failure::Kind::worker;
    if (worker && (!failure.end.failed() || failure.end.stopped)) continue;
    if (first == nullptr) {
      first = &failure;
      begin = failure.seconds;
    } else if (is_hard(failure) && !is_hard(*first) &&
               failure.seconds <= begin + window_seconds(*first, failure)) {
      first = &failure;
    }
  }
  if (first == nullptr) return std::nullopt;
  return *first;
}

std::optional<int> first_failure(const std::vector<WorkerEnd>& ends) {
  std::vector<Failure> failures;
  for (const WorkerEnd& end : ends)
    failures.push_back({.kind = Failure::Kind::worker, .node = end.node, .seconds = end.seconds, .end = end});
  const auto first = first_failure(failures);
  return first ? std::optional(first->end.rank) : std::nullopt;
}

}  // namespace lockstep::launcher
