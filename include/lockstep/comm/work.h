// A collective that is under way.
#pragma once

#include <chrono>
#include <memory>

namespace lockstep {

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

 private:
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
