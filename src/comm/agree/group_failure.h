// What a group failed with, as one rank of it knows: the first stays, and every later call throws it. For
// transports that share no memory; in shared memory the ranks have one record for all (comm/shm/meeting.h).
// From any thread.
#pragma once

#include <atomic>
#include <mutex>

#include "comm/call/failure_record.h"

namespace lockstep {

class GroupFailure {
 public:
  // False: there is one already.
  bool keep(const FailureRecord& record) {
    const std::lock_guard lock(mutex_);
    if (any()) return false;
    record_ = record;
    any_.store(true, std::memory_order_release);
    return true;
  }
  bool any() const { return any_.load(std::memory_order_acquire); }
  const FailureRecord& record() const { return record_; }  // if any(); never changes from then on
  void check() const {
    if (any()) throw_record(record_);
  }

 private:
  std::mutex mutex_;  // of those that fail at once
  std::atomic<bool> any_ = false;
  FailureRecord record_ = {};
};

}  // namespace lockstep
