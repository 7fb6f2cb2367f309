// What a Work handle refers to, and how its continuations run.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/comm/work.h"

namespace lockstep {

struct Work::State : std::enable_shared_from_this<Work::State> {
  using Callback = std::function<void(const State&)>;  // throws nothing

  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  // Written once, before done; whoever saw done reads them without the lock.
  std::exception_ptr error;
  WorkTiming timing;
  std::vector<DeviceEnd> ends;
  std::vector<Callback> callbacks;  // empty once done

  void finish(std::exception_ptr with, WorkTiming when, std::vector<DeviceEnd> where = {});
  void when_done(Callback callback);  // at once where it is done
};

// How many functions given to then() or on_done() this thread has run.
std::uint64_t continuations_run() noexcept;

// Whether a function given to then() or on_done() runs on this thread: there nothing may wait.
bool inside_continuation() noexcept;

}  // namespace lockstep
