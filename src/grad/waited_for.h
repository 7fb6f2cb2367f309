// Asynchronous calls in memory that goes with a scope.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/comm/work.h"

namespace lockstep {

// What was begun in it has ended when it goes: an error on the way, also of a later call that can't be begun,
// leaves nothing under way in memory that others get. It stands behind that memory's owner, to go first.
class WaitedFor {
 public:
  WaitedFor() = default;
  ~WaitedFor() {
    for (const Work& work : works_) try {
        work.wait();
      } catch (...) {  // NOLINT(bugprone-empty-catch): the group keeps its failure
      }
  }
  WaitedFor(const WaitedFor&) = delete;
  WaitedFor& operator=(const WaitedFor&) = delete;

  // `begin` begins a call and gives its Work, which stays here until the next one comes; throws what it
  // throws.
  template <class Begin>
  const Work& add(Begin&& begin) {
    works_.emplace_back();  // first: what has begun is never without a place
    works_.back() = std::forward<Begin>(begin)();
    return works_.back();
  }
  // Until all have ended: gives them, and forgets them. Throws what the first that failed threw.
  std::vector<Work> wait() {
    when_all(works_).wait();
    return std::exchange(works_, {});
  }
  // Somebody else waits for them from here on.
  void let_go() { works_.clear(); }

 private:
  std::vector<Work> works_;
};

}  // namespace lockstep
