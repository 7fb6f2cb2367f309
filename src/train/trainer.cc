#include "lockstep/train/trainer.h"

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "report/run_display.h"
#include "train/run.h"
#include "train/stop_watch.h"
#include "train/threads.h"

namespace lockstep {
namespace {

void check(const ModuleRef& model, const Task& task) {
  if (model.pointer() == nullptr) throw UsageError("Trainer: the model is null");
  if (!task.train) throw UsageError("Trainer: the task has no dataset to train on (train)");
  if (!task.loss) throw UsageError("Trainer: the task has no loss");
}

}  // namespace

struct Trainer::Impl {
  std::optional<RunDisplay> display;  // where no command shows what happens
  std::optional<TrainRun> run;
};

Trainer::Trainer(ModuleRef model, Task task, TrainerOptions options, Group world)
    : impl_(std::make_unique<Impl>()) {
  check(model, task);
  if (!world) world = init();
  pin_threads(options.threads);
  auto plan = std::make_unique<RunPlan>(plan_program(std::move(options), world));
  plan->sink = [](const nlohmann::ordered_json&) {};
  if (!plan->options.quiet) {
    impl_->display.emplace(Show::text);
    impl_->display->give_up_when([] { return noted_stop() != 0; });
    plan->sink = [display = &*impl_->display](const nlohmann::ordered_json& event) {
      display->handle(event);
    };
  }
  impl_->run.emplace(std::move(plan), model.pointer(), std::move(task), std::move(world));
}

Trainer::Trainer(ModuleRef model, Task task, std::unique_ptr<RunPlan> plan, Group world)
    : impl_(std::make_unique<Impl>()) {
  check(model, task);
  impl_->run.emplace(std::move(plan), model.pointer(), std::move(task), std::move(world));
}

Trainer::~Trainer() = default;

TrainerResult Trainer::run() {
  const TrainerResult result = impl_->run->run();
  if (impl_->display) impl_->display->finish();
  return result;
}

}  // namespace lockstep
