#include "lockstep/train/captured_loss.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/units.h"
#include "parallel/sync_norms.h"
#include "parallel/unit_points.h"
#include "train/graph_maker.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int kWarmUps = 3;
constexpr const char* kState = "record";
constexpr const char* kReplay = "replay";

bool alike(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() || (a.sizes() == b.sizes() && a.strides() == b.strides() &&
                          a.scalar_type() == b.scalar_type() && a.device() == b.device());
}

// A copy with the same strides; where elements share memory, a plain one, which is then like no input.
torch::Tensor copy_of(const torch::Tensor& input) {
  if (!input.defined()) return input;
  for (std::int64_t d = 0; d < input.dim(); ++d)
    if (input.stride(d) == 0 && input.size(d) > 1) return input.detach().clone();
  return torch::empty_strided(input.sizes(), input.strides(), input.options().requires_grad(false))
      .copy_(input);
}

// The state of the device's generator, so that whoever draws from it is noticed.
torch::Tensor generator_state(torch::Device device) {
  const at::Generator generator = at::globalContext().defaultGenerator(device);
  return generator.get_state().clone();
}

std::vector<const void*> places_in(const torch::nn::Module& model) {
  std::vector<const void*> places;
  for (const auto& list : {model.parameters(), model.buffers()})
    for (const torch::Tensor& tensor : list) places.push_back(tensor.data_ptr());
  return places;
}

[[noreturn]] void refuse(const std::string& why) {
  throw UsageError("a loss can't be recorded as a CUDA graph: " + why);
}

}  // namespace

// What was recorded, and what a replay reads and writes.
struct LossRecord : torch::CustomClassHolder {
  std::vector<torch::Tensor> inputs;
  std::vector<torch::Tensor> parameters;  // that get gradients
  std::vector<const void*> places;        // where all parameters and buffers lay
  torch::Tensor seed;                     // the gradient of the loss
  torch::Tensor loss;                     // with its graph of autograd, until backward is recorded
  // Their memory goes with the last of them.
  std::unique_ptr<Graph> forward;
  std::unique_ptr<Graph> backward;
  std::int64_t replays = 0;
  std::int64_t open = 0;  // the replay whose backward finds what its forward has kept; 0: none does

  // Where the last backward left a parameter's gradient in the graph's memory, and somebody adds to it.
  void move_gradients_away() {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (torch::Tensor& grad = parameters[i].mutable_grad();
          grad.defined() && grad.data_ptr() == backward->results[i].data_ptr())
        grad = grad.clone();
  }
};

namespace {

struct Replay : torch::autograd::Function<Replay> {
  static torch::Tensor forward(AutogradContext* context, at::TensorList /*parameters*/,
                               const c10::intrusive_ptr<LossRecord>& record) {
    context->saved_data[kState] = c10::IValue::make_capsule(record);
    record->forward->replay();
    record->open = ++record->replays;
    context->saved_data[kReplay] = record->open;
    return record->forward->results[0].clone();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto held = context->saved_data.at(kState).toCapsule();
    auto& record = static_cast<LossRecord&>(*held);
    if (std::exchange(record.open, 0) != context->saved_data.at(kReplay).toInt())
      throw UsageError(
          "backward of a recorded loss after the next one was computed, or a second time: what its forward "
          "kept is overwritten; accepted: once, and before the next call");
    record.move_gradients_away();
    record.seed.copy_(gradients[0]);
    record.backward->replay();
    variable_list all;
    for (const torch::Tensor& gradient : record.backward->results) all.push_back(gradient.detach());
    all.emplace_back();  // of the record
    return all;
  }
};

}  // namespace

struct CapturedLoss::Impl {
  std::shared_ptr<torch::nn::Module> model;
  Function function;
  std::shared_ptr<GraphMaker> given;  // null: CUDA's, one a record
  c10::intrusive_ptr<LossRecord> record;
  std::int64_t replays = 0;  // of records before

  void forget_what_moved();
  void make_record(const std::vector<torch::Tensor>& inputs, const std::shared_ptr<GraphMaker>& maker);
};

CapturedLoss::CapturedLoss(const ModuleRef& model, Function function)
    : CapturedLoss(model, std::move(function), nullptr) {}

CapturedLoss::CapturedLoss(const ModuleRef& model, Function function, std::shared_ptr<GraphMaker> maker)
    : impl_(std::make_shared<Impl>()) {
  if (model.pointer() == nullptr || !function)
    throw UsageError("CapturedLoss of no model, or of no function");
  if (has_sync_norms(*model.pointer()))
    refuse("the model has a SyncBatchNorm, whose workers meet in forward; accepted: batch or group norm");
  impl_->model = model.pointer();
  impl_->function = std::move(function);
  impl_->given = std::move(maker);
}

std::int64_t CapturedLoss::replays() const {
  return impl_->replays + (impl_->record ? impl_->record->replays : 0);
}

torch::Tensor CapturedLoss::operator()(const std::vector<torch::Tensor>& inputs) {
  Impl& my = *impl_;
  const auto first = std::ranges::find_if(inputs, [](const torch::Tensor& x) { return x.defined(); });
  const bool on_gpu = first != inputs.end() && first->device().is_cuda();
  if ((!on_gpu && my.given == nullptr) || !torch::GradMode::is_enabled()) return my.function(inputs);
  my.forget_what_moved();
  if (!my.record) my.make_record(inputs, my.given ? my.given : make_cuda_graphs(first->device()));
  LossRecord& record = *my.record;
  if (!std::ranges::equal(inputs, record.inputs, alike)) return my.function(inputs);
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].defined()) record.inputs[i].copy_(inputs[i], /*non_blocking=*/true);
  }
  return Replay::apply(at::TensorList(record.parameters), my.record);
}

void CapturedLoss::Impl::forget_what_moved() {
  if (!record) return;
  if (places_in(*model) == record->places) return;
  replays += record->replays;
  record = {};
}

void CapturedLoss::Impl::make_record(const std::vector<torch::Tensor>& inputs,
                                     const std::shared_ptr<GraphMaker>& maker) {
  for (const auto& point : units_in(*model))
    if (detail::gathered(*point) || point->recompute)
      refuse(
          "units of the model are gathered, or recomputed, inside forward and backward; accepted: ddp, "
          "zero1, zero2, without recompute");
  auto made = c10::make_intrusive<LossRecord>();
  std::vector<std::pair<torch::Tensor, torch::Tensor>> buffers;  // and what they hold
  {
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& input : inputs) made->inputs.push_back(copy_of(input));
    for (const torch::Tensor& buffer : model->buffers()) buffers.emplace_back(buffer, buffer.clone());
  }
  std::vector<torch::Tensor> trained;
  for (const torch::Tensor& parameter : model->parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  made->places = places_in(*model);
  const auto gradients = [&](const std::vector<torch::Tensor>& of) {
    return torch::autograd::grad({made->loss}, of, {made->seed}, /*retain_graph=*/false,
                                 /*create_graph=*/false, /*allow_unused=*/true);
  };
  try {
    for (int i = 0; i < kWarmUps; ++i)
      maker->warm_up([&] {
        const torch::Device device = trained.empty() ? torch::Device(torch::kCPU) : trained[0].device();
        const torch::Tensor before = generator_state(device);
        made->loss = function(made->inputs);
        if (!torch::equal(before, generator_state(device)))
          refuse(
              "it draws random numbers (dropout?), which would be the same in every step; accepted: without");
        if (!made->seed.defined()) made->seed = torch::ones_like(made->loss.detach());
        const std::vector<torch::Tensor> found = gradients(trained);
        made->parameters.clear();
        for (std::size_t p = 0; p < found.size(); ++p)
          if (found[p].defined()) made->parameters.push_back(trained[p]);
      });
    LossRecord* const own = made.get();
    made->forward = maker->record([this, own] {
      own->loss = function(own->inputs);
      return std::vector<torch::Tensor>{own->loss.detach()};
    });
    made->backward =
        maker->record([own] { return torch::autograd::grad({own->loss}, own->parameters, {own->seed}); });
  } catch (const UsageError&) {
    throw;
  } catch (const c10::Error& error) {
    const std::string why = error.what_without_backtrace();
    refuse(why.substr(0, why.find('\n')));
  }
  made->loss = torch::Tensor();
  {
    const torch::NoGradGuard no_grad;
    for (auto& [buffer, held] : buffers) buffer.copy_(held);
  }
  record = std::move(made);
}

}  // namespace lockstep
