#include "grad/backward_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>

namespace lockstep {
namespace {

class PostHook final : public torch::autograd::FunctionPostHook {
 public:
  PostHook(std::function<void(std::size_t)> fn, std::size_t index) : fn_(std::move(fn)), index_(index) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    // The accumulator is also run when some function has no gradient for the tensor; nothing was added then.
    if (!inputs.empty() && inputs[0].defined()) fn_(index_);
    return outputs;
  }

 private:
  std::function<void(std::size_t)> fn_;
  std::size_t index_;
};

}  // namespace

BackwardHooks::BackwardHooks(const std::vector<torch::Tensor>& tensors, std::function<void(std::size_t)> fn) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto node = torch::autograd::impl::grad_accumulator(tensors[i]);
    const auto key = node->add_post_hook(std::make_unique<PostHook>(fn, i));
    entries_.push_back({std::move(node), key});
  }
}

BackwardHooks::~BackwardHooks() {
  for (Entry& entry : entries_) entry.node->del_post_hook(entry.key);
}

int backward_depth() {
  // The engine tells which graph task runs only by this member of it, and of libtorch 1.13 by nothing else.
  using torch::autograd::GraphTask;
  const auto* const member = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (member == nullptr) return 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr std::size_t kOffset = offsetof(GraphTask, nodes_in_graph_);
#pragma GCC diagnostic pop
  const auto* const task =
      reinterpret_cast<const GraphTask*>(reinterpret_cast<const std::byte*>(member) - kOffset);
  return task->reentrant_depth_;
}

void at_end_of_backward(std::function<void()> fn) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(fn));
}

}  // namespace lockstep
