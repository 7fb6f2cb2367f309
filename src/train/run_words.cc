// What a run says of itself before its first step.
#include <fmt/format.h>

#include "base/option_name.h"
#include "lockstep/base/error.h"
#include "report/folder_content.h"
#include "report/folder_lock.h"
#include "report/table.h"
#include "train/footprint.h"
#include "train/run.h"

namespace lockstep {
namespace {

// "11.2 M", "34.5 K"
std::string in_words(std::int64_t count) {
  const auto number = static_cast<double>(count);
  return count >= 1'000'000 ? fmt::format("{:.1f} M", number / 1e6) : fmt::format("{:.1f} K", number / 1e3);
}

// What a process that was killed at the very end left.
void sweep(const std::string& folder) try {
  const FolderLock lock(folder);
  remove_leftovers(folder);
} catch (const SystemError&) {
  // A folder that can't be written has nothing of that kind, or it has to stay.
}

}  // namespace

std::string remark_on_workers(const std::string& what, std::int64_t before, std::int64_t now) {
  if (what.empty() || before == 0 || before == now) return "";
  return fmt::format("with {} the bits depend on the number of workers, which was {} and is {} from here on",
                     what, before, now);
}

// The run that was to go on is through. Its folder stays as it is.
void TrainRun::nothing_left() const {
  if (plan_->first_step > loader_.steps() && options_.epochs == 0)
    throw UsageError(fmt::format("{} is less than the {} that {} has done; accepted: {} or more",
                                 option_text("steps", std::to_string(options_.steps)), plan_->first_step,
                                 plan_->resumed, plan_->first_step));
  if (plan_->first_step > loader_.steps())
    throw UsageError(fmt::format("{} ends at step {}, and {} has done {}; accepted: {} or more",
                                 option_text("epochs", std::to_string(options_.epochs)), loader_.steps(),
                                 plan_->resumed, plan_->first_step,
                                 (plan_->first_step - 1) / loader_.steps_per_epoch() + 1));
  const bool any_length = !depends_on_length(options_.schedule.kind);
  if (leads()) sweep(options_.out);
  tell({{"event", "through"},
        {"step", plan_->first_step},
        {"steps", loader_.steps()},
        {"text",
         fmt::format("{} is through: step {} of {}{}", plan_->resumed, plan_->first_step, loader_.steps(),
                     any_length
                         ? fmt::format("; {} above {} goes on", option_text("steps", "N"), loader_.steps())
                         : "")}});
}

void TrainRun::announce() const {
  std::int64_t parameters = 0;
  for (const auto& p : model_->parameters()) parameters += p.numel();
  const std::string from = !plan_->checkpoint.empty()
                               ? fmt::format(", going on after step {}", plan_->first_step)
                           : !plan_->init.empty() ? fmt::format(", with the weights of {}", options_.init)
                                                  : "";
  const std::optional<double> least = task_.test ? task_.test->loss_floor() : std::nullopt;
  const std::string floor = least ? fmt::format(", loss floor {:.4f}", *least) : "";
  const bool own = plan_->folder_use == FolderUse::resume;  // the checkpoint lies in this run's folder
  tell(
      {{"event", "begin"},
       {"checkpoint", own ? plan_->checkpoint.string() : ""},
       {"resume", plan_->how_to_resume},
       {"text", fmt::format("{} ({} parameters) on {} ({}{}): {}, {} × {}, {}{}", options_.model_name,
                            in_words(parameters), options_.data_name, counted(task_.train->size(), "example"),
                            floor, counted(world_.size(), "worker"), counted(options_.lanes, "lane"),
                            options_.lane_batch, counted(loader_.steps(), "step"), from)}});
  if (options_.precision != "fp32") {
    const StateBytes bytes = predict_state_bytes(options_, *strategy_);
    const auto each = [&](double all) { return all / static_cast<double>(parameters); };
    tell({{"event", "note"},
          {"text", fmt::format("{}: a worker's model state should take {:.1f} bytes a parameter: parameters "
                               "{:.1f}, gradients {:.1f}, optimizer {:.1f}",
                               options_.precision, each(bytes.total()), each(bytes.parameters),
                               each(bytes.gradients), each(bytes.optimizer))}});
  }
  if (!plan_->remark.empty()) tell({{"event", "note"}, {"text", plan_->remark}});
  for (const std::string& remark : facts_.remarks) tell({{"event", "note"}, {"text", remark}});
  if (!about_exchange_.empty()) tell({{"event", "note"}, {"text", about_exchange_}});
  if (const auto& never_begins = strategy_->exchange().never_begins)
    if (const std::string text = never_begins(loader_.steps()); !text.empty())
      tell({{"event", "note"}, {"text", text}});
  if (world_.size() == 1 && options_.parallel.exchange &&
      !strategy_->exchange().bind)  // that cuts no lanes' tree
    tell({{"event", "note"},
          {"text", fmt::format("one worker has nobody to exchange gradients with: {} changes nothing",
                               strategy_->exchange().name)}});
}

}  // namespace lockstep
