#include "lockstep/train/trainer.h"

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>
#include <utility>

#include "comm/world/group_impl.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "report/run_display.h"
#include "train/device.h"
#include "train/run.h"
#include "train/stop_watch.h"
#include "train/threads.h"

namespace lockstep {
namespace {

void check(const ModuleRef& model, const Task& task) {
  if (model.pointer() == nullptr) throw UsageError("Trainer: the model is null");
  if (std::ranges::none_of(model.pointer()->parameters(), &torch::Tensor::requires_grad))
    throw UsageError("Trainer: the model has no parameter to train; accepted: one that requires a gradient");
  if (!task.train) throw UsageError("Trainer: the task has no dataset to train on (train)");
  if (!task.loss) throw UsageError("Trainer: the task has no loss");
  if (task.test && task.test->size() < 1)
    throw UsageError(
        "Trainer: the dataset to test on (test) has no examples; accepted: 1 or more, or no test");
  std::set<std::string> names = {"", "step", "epoch", "validation_loss"};  // columns of evaluations.csv
  for (const auto& [name, metric] : task.metrics) {
    if (!metric) throw UsageError("Trainer: the metric '" + name + "' has no function");
    if (!names.insert(name).second || name.find_first_of(",\"\r\n") != std::string::npos)
      throw UsageError(
          "Trainer: a metric called '" + one_line(name) +
          "'; accepted: each name once, without commas, quotes and line ends, and not step, epoch "
          "or validation_loss");
  }
}

// The others would wait for this rank as long as its program keeps the group.
void give_up(const Group& world, const std::string& where, std::string_view why) {
  why = why.substr(0, why.find('\n'));  // libtorch adds a backtrace
  GroupImpl::of(world).give_up(
      PeerError(world.rank(), world.named(world.rank()) + " gave up in " + where + ": " + std::string(why)));
}

template <class Work>
auto or_give_up(const Group& world, const char* where, Work&& work) try {
  return work();
} catch (const DatasetError& error) {
  give_up(world, where, error.what());
  throw;
} catch (const RunFolderError& error) {  // on rank 0, in a step: the others are in the next one
  give_up(world, where, error.what());
  throw;
} catch (const OffloadError& error) {  // of this worker's disk: the others wait for what was on it
  give_up(world, where, error.what());
  throw;
} catch (const Error&) {
  throw;  // the others have it, or their own
} catch (const std::exception& error) {
  give_up(world, where, error.what());
  throw;
}

// The task's functions run where their batches are, on one rank perhaps. What they throw is no refusal of a
// call that all ranks make, an Error of ours too.
template <class Function>
auto heard_by_all(const Group& world, const char* where, Function&& function) try {
  return function();
} catch (const UsageError& error) {
  give_up(world, where, error.what());
  throw;
} catch (const SystemError& error) {
  give_up(world, where, error.what());
  throw;
}

torch::Tensor checked(torch::Tensor loss) {
  constexpr const char* kAccepted = "; accepted: one number, the mean of its batch";
  if (!loss.defined()) throw UsageError(std::string("Trainer: the loss is undefined") + kAccepted);
  if (loss.numel() != 1)
    throw UsageError("Trainer: the loss has sizes " + c10::str(loss.sizes()) + kAccepted);
  if (c10::GradMode::is_enabled() && !loss.requires_grad())
    throw UsageError(
        "Trainer: the loss does not depend on the model's parameters; accepted: one that is computed from "
        "its output, without detach()");
  return loss;
}

Task heard_by_all(Task task, const Group& world) {
  task.forward = [forward = std::move(task.forward), world](const Batch& batch) {
    return heard_by_all(world, "the model's forward", [&] { return forward(batch); });
  };
  task.loss = [loss = std::move(task.loss), world](const torch::Tensor& output, const Batch& batch) {
    return heard_by_all(world, "the loss", [&] { return checked(loss(output, batch)); });
  };
  for (auto& [name, metric] : task.metrics)
    metric = [metric = std::move(metric), world, where = "the metric '" + name + "'"](
                 const torch::Tensor& output, const Batch& batch) {
      return heard_by_all(world, where.c_str(), [&] { return metric(output, batch); });
    };
  return task;
}

}  // namespace

struct Trainer::Impl {
  Group world;
  std::optional<RunDisplay> display;  // where no command shows what happens
  std::optional<TrainRun> run;
  bool ran = false;
};

Trainer::Trainer(ModuleRef model, Task task, TrainerOptions options, Group world)
    : impl_(std::make_unique<Impl>()) {
  check(model, task);
  if (!world) world = init({.device = device_kind(options.device)});
  impl_->world = world;
  auto plan = std::make_unique<RunPlan>(plan_program(std::move(options), world));
  pin_threads(plan->options.threads);
  plan->sink = [](const nlohmann::ordered_json&) {};
  if (!plan->options.quiet) {
    impl_->display.emplace(Show::text);
    impl_->display->give_up_when([] { return noted_stop() != 0; });
    plan->sink = [display = &*impl_->display](const nlohmann::ordered_json& event) {
      display->handle(event);
    };
  }
  or_give_up(impl_->world, "Trainer", [&] {
    impl_->run.emplace(std::move(plan), model.pointer(), heard_by_all(std::move(task), impl_->world),
                       std::move(world));
  });
}

Trainer::Trainer(ModuleRef model, Task task, std::unique_ptr<RunPlan> plan, Group world)
    : impl_(std::make_unique<Impl>()) {
  check(model, task);
  impl_->world = world;
  or_give_up(impl_->world, "Trainer", [&] {
    impl_->run.emplace(std::move(plan), model.pointer(), heard_by_all(std::move(task), impl_->world),
                       std::move(world));
  });
}

Trainer::~Trainer() = default;

TrainerResult Trainer::run() {
  if (std::exchange(impl_->ran, true))
    throw UsageError(
        "Trainer::run: this one has run already; accepted: once, another run is another Trainer");
  return or_give_up(impl_->world, "Trainer::run", [&] {
    const TrainerResult result = impl_->run->run();
    if (impl_->display) impl_->display->finish();
    return result;
  });
}

}  // namespace lockstep
