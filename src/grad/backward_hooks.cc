#include "grad/backward_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
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

BackwardHooks::BackwardHooks(const std::vector<torch::Tensor>& tensors, Call fn, Call lost) {
  entries_.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto node = torch::autograd::impl::grad_accumulator(tensors[i]);
    const auto key = node->add_post_hook(std::make_unique<PostHook>(fn, i));
    std::optional<unsigned> before;  // this one is the tensor's own and stays with it
    if (lost)
      before = tensors[i].register_hook([this, i, lost](const torch::Tensor&) {
        if (entries_[i].is_lost()) lost(i);
      });
    entries_.push_back({tensors[i], std::move(node), key, before});
  }
}

BackwardHooks::~BackwardHooks() {
  for (Entry& entry : entries_) {
    entry.node->del_post_hook(entry.key);
    if (entry.before) entry.tensor.remove_hook(*entry.before);
  }
}

bool BackwardHooks::Entry::is_lost() const {
  return torch::autograd::impl::try_get_grad_accumulator(tensor) != node;
}

std::optional<std::size_t> BackwardHooks::first_lost() const {
  const auto found = std::ranges::find_if(entries_, &Entry::is_lost);
  if (found == entries_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - entries_.begin());
}

bool is_hooked(const torch::Tensor& tensor) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(tensor);
  return node != nullptr && std::ranges::any_of(node->post_hooks(), [](const auto& hook) {
           return dynamic_cast<const PostHook*>(hook.get()) != nullptr;
         });
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
