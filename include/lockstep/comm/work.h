// A collective that is under way.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace lockstep {

// When an operation ran, in nanoseconds of the steady clock (now_ns()).
struct WorkTiming {
  std::int64_t begin_ns = 0;    // its turn came
  std::int64_t running_ns = 0;  // all ranks were there, data began to move
  std::int64_t end_ns = 0;
  std::string algorithm;
};

// A value handle; copies refer to the same operation. Dropping it does not cancel the operation: the
// buffers must stay alive until it is done (destroying the group waits for it or fails it).
class Work {
 public:
  struct State;

  Work() = default;  // empty: already done
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool done() const;
  // Waits until it is done; rethrows what the operation threw.
  void wait() const;
  // Like wait, for at most `timeout`; false when it is not done by then. The operation goes on.
  bool wait_for(std::chrono::milliseconds timeout) const;
  // Of an operation that is done; zeros otherwise.
  WorkTiming timing() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
