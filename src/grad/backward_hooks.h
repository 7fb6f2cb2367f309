// The places where we look into libtorch's autograd engine: a call after each gradient was accumulated, and
// one at the end of the backward pass.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace lockstep {

// Calls `fn(i)` after tensor i's gradient was added to its grad(), once for every time it is in a backward
// pass, however often it is used there. Stops when destroyed.
//
// A tensor that is given another type or device (Module::to) gets another accumulator of gradients, of which
// we don't hear; also where it is given the old ones back. Then `lost(i)` is called before its gradient is
// accumulated, which may throw.
class BackwardHooks {
 public:
  using Call = std::function<void(std::size_t)>;
  BackwardHooks(const std::vector<torch::Tensor>& tensors, Call fn, Call lost = {});
  ~BackwardHooks();
  BackwardHooks(const BackwardHooks&) = delete;
  BackwardHooks& operator=(const BackwardHooks&) = delete;

  // The first tensor of whose gradients we don't hear any more.
  std::optional<std::size_t> first_lost() const;

 private:
  struct Entry {
    torch::Tensor tensor;
    std::shared_ptr<torch::autograd::Node> node;  // keeps the accumulator, and so the hook, alive
    std::uintptr_t key;                           // of the hook behind it
    std::optional<unsigned> before;               // the one of the tensor's own, where there is a `lost`
    bool is_lost() const;
  };
  std::vector<Entry> entries_;
};

// Whether a BackwardHooks that lives hears of this tensor's gradients.
bool is_hooked(const torch::Tensor& tensor);

// Inside a hook: how many backward passes run around this one (a backward called within backward, as
// activation checkpointing does). 0 for an ordinary one.
int backward_depth();

// Inside a hook: `fn` runs on this thread when the present backward pass has computed everything, before its
// backward() returns; what it throws comes out of backward().
void at_end_of_backward(std::function<void()> fn);

}  // namespace lockstep
