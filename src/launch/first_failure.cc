#include "launch/first_failure.h"

#include <algorithm>
#include <csignal>
#include <set>

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

bool is_worker(const Failure& failure) { return failure.kind == Failure::Kind::worker; }

// Those that may be the cause, by what the workers said of each other.
std::vector<Failure> unexplained(const std::vector<Failure>& failures) {
  std::vector<Failure> able;
  std::set<int> failed;
  std::set<int> blamed;
  for (const Failure& failure : failures) {
    if (is_worker(failure) && !may_be_cause(failure.end)) continue;
    able.push_back(failure);
    if (!is_worker(failure)) continue;
    failed.insert(failure.end.rank);
    blamed.insert(failure.end.blames.begin(), failure.end.blames.end());
  }
  // One that failed after it was told to stop counts only when somebody names it.
  std::erase_if(able, [&](const Failure& failure) {
    return is_worker(failure) && failure.end.stopped && !blamed.contains(failure.end.rank);
  });
  const auto keep = [&](auto&& wanted) {
    std::vector<Failure> some;
    for (const Failure& failure : able)
      if (wanted(failure)) some.push_back(failure);
    if (!some.empty()) able = std::move(some);
  };
  keep([&](const Failure& failure) {
    const auto& reasons = failure.end.blames;
    return !is_worker(failure) || std::none_of(reasons.begin(), reasons.end(), [&](int rank) {
      return rank != failure.end.rank && failed.contains(rank);
    });
  });
  const bool named = std::any_of(able.begin(), able.end(), [&](const Failure& failure) {
    return is_worker(failure) && blamed.contains(failure.end.rank);
  });
  if (named)
    keep([&](const Failure& failure) { return !is_worker(failure) || blamed.contains(failure.end.rank); });
  return able;
}

}  // namespace

bool may_be_cause(const WorkerEnd& end) {
  return end.failed() && !(end.stopped && (end.signal == SIGTERM || end.signal == SIGKILL));
}

std::optional<Failure> first_failure(const std::vector<Failure>& failures) {
  const std::vector<Failure> able = unexplained(failures);
  const Failure* first = nullptr;
  double begin = 0;
  for (const Failure& failure : able) {
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
