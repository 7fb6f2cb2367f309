// The two places where we look into libtorch's autograd engine: a call after each gradient was accumulated,
// and one at the end of the backward pass.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace lockstep {

// Calls `fn(i)` after tensor i's gradient was added to its grad(), once for every time it is in a backward
// pass, however often it is used there. Stops when destroyed.
class BackwardHooks {
 public:
  BackwardHooks(const std::vector<torch::Tensor>& tensors, std::function<void(std::size_t)> fn);
  ~BackwardHooks();
  BackwardHooks(const BackwardHooks&) = delete;
  BackwardHooks& operator=(const BackwardHooks&) = delete;

 private:
  struct Entry {
    std::shared_ptr<torch::autograd::Node> node;  // keeps the accumulator, and so the hook, alive
    std::uintptr_t key;
  };
  std::vector<Entry> entries_;
};

// Inside a hook: how many backward passes run around this one (a backward called within backward, as
// activation checkpointing does). 0 for an ordinary one.
int backward_depth();

// Inside a hook: `fn` runs on this thread when the present backward pass has computed everything, before its
// backward() returns; what it throws comes out of backward().
void at_end_of_backward(std::function<void()> fn);

}  // namespace lockstep
