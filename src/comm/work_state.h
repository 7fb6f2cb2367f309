// What a Work handle refers to.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>

#include "lockstep/comm/work.h"

namespace lockstep {

struct Work::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;
  WorkTiming timing;  // the serving thread's until done

  void finish(std::exception_ptr with) {
    const std::lock_guard lock(mutex);
    done = true;
    error = std::move(with);
    changed.notify_all();
  }
};

}  // namespace lockstep
