// Activation checkpointing: a unit's forward without a graph, and once more, with one, when its backward
// comes.
//
// What has to be the same the second time is put back first: the random generator, autocast and whatever else
// the thread had set. What the second time must not do again is undone: batch norm's running statistics are
// as they were. In the graph the whole unit is one node, with edges to its inputs and its parameters: a
// gradient comes to a parameter once in a backward, however often and where it is used, as without all this.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/version.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/parallel/units.h"
#include "parallel/unit_points.h"

namespace lockstep::detail {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using Forward = std::function<Tensors(const Tensors&)>;

// A generator, and where it stood.
struct Drawn {
  at::Generator generator;
  torch::Tensor state;
};

Drawn as_it_stands(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return {generator, generator.get_state()};
}

void put_back(const Drawn& then) {
  at::Generator generator = then.generator;
  const std::lock_guard lock(generator.mutex());
  generator.set_state(then.state);
}

// What a unit's forward may draw from: the processor's generator, and those of the GPUs where its tensors
// are.
std::vector<Drawn> generators_of(const UnitPoint& point, const Tensors& inputs) {
  std::vector<Drawn> list = {as_it_stands(at::detail::getDefaultCPUGenerator())};
  std::vector<torch::Device> seen;
  const auto look_at = [&](const torch::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda() || std::ranges::count(seen, tensor.device()) > 0) return;
    seen.push_back(tensor.device());
    list.push_back(as_it_stands(at::globalContext().defaultGenerator(tensor.device())));
  };
  for (const torch::Tensor& input : inputs) look_at(input);
  for (const auto& module : point.modules)
    for (const torch::Tensor& parameter : module->parameters()) look_at(parameter);
  return list;
}

// What autocast casts to is the thread's, too, and ThreadLocalState leaves it out: backward on a GPU runs on
// a thread of libtorch's, where it is f16.
struct AutocastTypes {
  torch::ScalarType cpu, cuda;
};
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
AutocastTypes autocast_types() {
  return {at::autocast::get_autocast_dtype(torch::kCPU), at::autocast::get_autocast_dtype(torch::kCUDA)};
}
void set_autocast_types(const AutocastTypes& types) {
  at::autocast::set_autocast_dtype(torch::kCPU, types.cpu);
  at::autocast::set_autocast_dtype(torch::kCUDA, types.cuda);
}
#else
AutocastTypes autocast_types() {
  return {at::autocast::get_autocast_cpu_dtype(), at::autocast::get_autocast_gpu_dtype()};
}
void set_autocast_types(const AutocastTypes& types) {
  at::autocast::set_autocast_cpu_dtype(types.cpu);
  at::autocast::set_autocast_gpu_dtype(types.cuda);
}
#endif

// While it lives the thread is as it was in the unit's forward, and draws the random numbers of that.
class AsInForward {
 public:
  AsInForward(const at::ThreadLocalState& thread, const std::vector<Drawn>& generators,
              const AutocastTypes& types)
      : types_(autocast_types()), guard_(thread) {
    for (const Drawn& then : generators) now_.push_back(as_it_stands(then.generator));
    for (const Drawn& then : generators) put_back(then);
    set_autocast_types(types);
  }
  ~AsInForward() {
    for (const Drawn& before : now_) put_back(before);
    set_autocast_types(types_);
    at::autocast::clear_cache();  // no scope ends here that would, and weights will change
  }
  AsInForward(const AsInForward&) = delete;
  AsInForward& operator=(const AsInForward&) = delete;

 private:
  std::vector<Drawn> now_;
  AutocastTypes types_;
  at::ThreadLocalStateGuard guard_;
};

// Buffers of a unit's modules, put back when destroyed.
class BuffersStay {
 public:
  explicit BuffersStay(const UnitPoint& point) {
    for (const auto& module : point.modules)
      for (const torch::Tensor& buffer : module->buffers())
        if (buffer.defined()) kept_.emplace_back(buffer, buffer.clone());
  }
  ~BuffersStay() {
    const torch::NoGradGuard no_grad;
    // Past the version counter: the graph has saved them, and does not read them (batch norm in training).
    for (auto& [buffer, value] : kept_) buffer.variable_data().copy_(value);
  }
  BuffersStay(const BuffersStay&) = delete;
  BuffersStay& operator=(const BuffersStay&) = delete;

 private:
  std::vector<std::pair<torch::Tensor, torch::Tensor>> kept_;
};

Tensors trained_in_unit(const UnitPoint& point) {
  Tensors list;
  std::unordered_set<const void*> seen;
  for (const auto& module : point.modules)
    for (const torch::Tensor& parameter : module->parameters())
      if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second)
        list.push_back(parameter);
  return list;
}

// What else a unit's forward has used would get no gradient, without a word.
void refuse_others(const Tensors& outputs, const Tensors& known) {
  std::unordered_set<const void*> expected;
  for (const torch::Tensor& tensor : known) expected.insert(tensor.unsafeGetTensorImpl());
  std::vector<torch::autograd::Node*> left;
  for (const torch::Tensor& output : outputs)
    if (output.defined() && output.grad_fn()) left.push_back(output.grad_fn().get());
  std::unordered_set<const void*> seen(left.begin(), left.end());
  while (!left.empty()) {
    torch::autograd::Node* const node = left.back();
    left.pop_back();
    const auto* const leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
    if (leaf != nullptr && !expected.contains(leaf->variable.unsafeGetTensorImpl()))
      throw UsageError("a unit that is recomputed uses a tensor of sizes " +
                       c10::str(leaf->variable.sizes()) +
                       " that wants a gradient, and is neither one of its arguments nor a parameter of its "
                       "modules; accepted: as an argument, or its module among the unit's");
    for (const torch::autograd::Edge& edge : node->next_edges())
      if (edge.is_valid() && seen.insert(edge.function.get()).second) left.push_back(edge.function.get());
  }
}

// The node of a unit in the graph: from the outputs' gradients to those of the inputs and the parameters.
class RecomputeNode final : public torch::autograd::Node {
 public:
  RecomputeNode(std::shared_ptr<UnitPoint> point, Forward forward, std::shared_ptr<void> use,
                const Tensors& inputs)
      : point_(std::move(point)),
        forward_(std::move(forward)),
        generators_(generators_of(*point_, inputs)),
        use_(std::move(use)) {}

  void save(const Tensors& inputs) {
    for (const torch::Tensor& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
  }

  variable_list apply(variable_list&& gradients) override {
    if (!forward_)
      throw UsageError("backward a second time through a unit that is recomputed; accepted: once");
    Tensors inputs;
    Tensors wanted;  // of which gradients are wanted, as the edges are
    for (SavedVariable& saved : inputs_) {
      const torch::Tensor input = saved.unpack();
      inputs.push_back(input.defined() ? input.detach().requires_grad_(input.requires_grad()) : input);
      if (input.defined() && input.requires_grad()) wanted.push_back(inputs.back());
    }
    for (const torch::Tensor& parameter : trained_in_unit(*point_)) wanted.push_back(parameter);
    const auto keeper = point_->keeper.lock();
    if (use_ && !keeper)
      throw UsageError(
          "backward through a unit whose strategy is gone: its parameters went with it; accepted: backward "
          "first");
    if (use_) keeper->begin_backward(use_);
    const Tensors outputs = run(inputs);
    refuse_others(outputs, wanted);
    variable_list roots;
    variable_list their_gradients;
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i].defined() && outputs[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(outputs[i]);
        their_gradients.push_back(gradients[i]);
      }
    variable_list results(wanted.size());
    if (!roots.empty())
      results = torch::autograd::grad(roots, wanted, their_gradients, /*retain_graph=*/false,
                                      /*create_graph=*/false, /*allow_unused=*/true);
    if (use_) keeper->end_backward(use_);
    return results;
  }

  void release_variables() override {
    inputs_.clear();
    forward_ = nullptr;
  }
  std::string name() const override { return "RecomputedUnit"; }

 private:
  Tensors run(const Tensors& inputs) const {
    const BuffersStay buffers(*point_);
    const AsInForward as_then(thread_, generators_, types_);
    const torch::AutoGradMode with_graph(true);
    return forward_(inputs);
  }

  std::shared_ptr<UnitPoint> point_;
  Forward forward_;
  std::vector<Drawn> generators_;
  AutocastTypes types_ = autocast_types();
  at::ThreadLocalState thread_;  // as it is where this is made
  std::shared_ptr<void> use_;
  std::vector<SavedVariable> inputs_;
};

}  // namespace

Tensors run_recomputed(const std::shared_ptr<UnitPoint>& point, Forward forward, const Tensors& inputs) {
  torch::autograd::edge_list edges;
  for (const Tensors& list : {inputs, trained_in_unit(*point)})
    for (const torch::Tensor& tensor : list)
      if (tensor.defined() && tensor.requires_grad())
        edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  point->refuse_parts();
  const auto keeper = point->keeper.lock();
  auto use = keeper ? keeper->begin_forward(point->number) : nullptr;
  const auto node = std::shared_ptr<RecomputeNode>(new RecomputeNode(point, forward, use, inputs),
                                                   torch::autograd::deleteNode);
  // Before the forward: one that writes to its inputs is then found out in backward, by their versions.
  if (!edges.empty()) node->save(inputs);
  Tensors outputs;
  try {
    const torch::NoGradGuard no_graph;
    outputs = forward(inputs);
    at::autocast::clear_cache();  // weights that were cast here have no graph, and others would get them
  } catch (...) {
    if (use) keeper->end_forward(use, {});
    throw;
  }
  if (use) keeper->end_forward(use, {});  // backward is told by the node
  if (edges.empty()) return outputs;
  node->set_next_edges(std::move(edges));
  for (torch::Tensor& output : outputs) {
    if (!output.defined() || !(output.is_floating_point() || output.is_complex())) {
      node->add_input_metadata(torch::autograd::Node::undefined_input());
      continue;
    }
    output = output.detach();  // a tensor of its own, also where the unit gives back what it got
    torch::autograd::set_history(output, node);
  }
  return outputs;
}

}  // namespace lockstep::detail
