// An operation that is under way: a future without a value.
//
//   Work reduced = world.all_reduce_async(x);
//   Work scaled = reduced.then([&] { scale(x); });              // when it is done
//   Work spread = scaled.then([&] { return world.broadcast_async(y, 0); });
//   when_all({spread, other}).wait();                           // rethrows
//
// Rules for the functions given to then() and on_done()
//  - They run on the thread that ends the operation: the group's own for its asynchronous calls, right after
//    the call and before the group's next one is begun, blocking or not. So they hold the group up, and so
//    what they did is there when a later call on the group has returned. Where the work is done already they
//    run at once, on the caller's thread.
//  - Of one work they run in the order in which they were given; one that is given, or made ready, while
//    another runs on the same thread comes after it.
//  - Nothing waits in them: wait() for what is not done, a blocking call on any group, split() and
//  form_group() are
//    UsageErrors there. Asynchronous calls are welcome. Such a call has its place in the order of calls by
//    when it is made, and ranks must agree about that: until then the program makes no other calls on that
//    group.
//  - What they hold is let go on that thread, before the work that then() gave is done. They may hold groups:
//    one that goes there ends what it has under way by itself, and nobody waits for that.
//
// Devices (comm/device.h). An operation on a device ends for the host when it has been put on its stream, and
// on the stream later; between the two nobody waits:
//  - wait() waits for the former alone. What the caller's current stream is given from then on comes after
//    the operation. Who reads the result on the host waits for it there: wait_on_host().
//  - A function given to then() puts what it has to do on the current stream of the thread that it runs on,
//    which comes after the operation; the Work that then() gives ends after that.
//  - on_done() tells the former. timing() tells when the device began and ended, where it knows and has
//  ended;
//    else what the host knows.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/device.h"

namespace lockstep {

// When an operation ran, in nanoseconds of the steady clock (now_ns()).
struct WorkTiming {
  std::int64_t begin_ns = 0;  // its turn came
  // Its algorithm began; on a device, its stream came to it. Where ranks meet first (in one memory, MPI's own
  // collectives that don't block) all of them were there. Elsewhere (TCP, our algorithms over MPI and Gloo,
  // across nodes, NCCL) this one was: it waits for the others on the way, and what lies between here and the
  // end has that in it.
  std::int64_t running_ns = 0;
  std::int64_t end_ns = 0;
  std::string algorithm;
};

// Where an operation on a device ends on its stream.
struct DeviceEnd {
  DeviceEvent event;
  std::string operation;  // in words, for messages
  // How long the host waits for it at most, once it has been put there.
  std::chrono::milliseconds timeout = std::chrono::hours(1);
  DeviceEvent begin = {};  // where it began, for its timing
};

// A value handle; copies refer to the same operation. Dropping it does not cancel the operation: the
// buffers must stay alive until it is done (destroying the group waits for it or fails it).
class Work {
 public:
  Work() = default;  // empty: already done

  bool done() const;  // on its device too
  // Waits until it is done; rethrows what the operation threw. On a device: in the order of the current
  // stream, see above.
  void wait() const;
  // Like wait, for at most `timeout`; false when it is not done by then. The operation goes on.
  bool wait_for(std::chrono::milliseconds timeout) const;
  // Like wait, until it is done on its device too. TimeoutError where that takes longer than the call may.
  void wait_on_host() const;
  // Of an operation that is done; zeros otherwise.
  WorkTiming timing() const;

  // Done when this is and then `f` has run; where f returns a Work, when that is done too. An error passes f
  // by and becomes the result's, and so does what f throws, which fails no group. Timing: this one's, with
  // the end of what came last.
  template <std::invocable F>
  [[nodiscard]] Work then(F f) const {
    if constexpr (std::is_void_v<std::invoke_result_t<F&>>)
      return then_work([f = std::move(f)]() mutable { return f(), Work(); });
    else
      return then_work(std::move(f));
  }
  // `f` gets the error that the operation ended with, null for none. What f throws is logged: nobody waits
  // for it.
  void on_done(std::function<void(std::exception_ptr)> f) const;

 private:
  friend class WorkPromise;
  friend Work when_all(std::vector<Work> works);
  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  Work then_work(std::function<Work()> f) const;

  std::shared_ptr<State> state_;
};

// Done when all are. Its error is that of the first in the list that has one, after all of them ended.
// Timing: from the first begin to the last end, and the algorithm where it is one.
[[nodiscard]] Work when_all(std::vector<Work> works);

// The other end of a Work, held by whoever does the operation, on any one thread at a time.
class WorkPromise {
 public:
  WorkPromise();
  WorkPromise(WorkPromise&&) noexcept = default;
  WorkPromise& operator=(WorkPromise&& other) noexcept;
  ~WorkPromise();  // not kept: the Work's error is a SystemError that says so

  Work work() const;  // UsageError once it was moved from

  // Runs what then() and on_done() were given before it returns (within such a function: after that). Once
  // for each promise; again is a UsageError. `ends`: of what was put on streams.
  void set_done(WorkTiming timing = {}, std::vector<DeviceEnd> ends = {});
  void set_error(std::exception_ptr error, WorkTiming timing = {});

 private:
  friend class Work;
  friend Work when_all(std::vector<Work> works);
  void keep(std::exception_ptr error, WorkTiming timing, std::vector<DeviceEnd> ends = {});
  bool kept() const;
  void abandon() noexcept;

  std::shared_ptr<Work::State> state_;  // null after it was moved from
};

}  // namespace lockstep
