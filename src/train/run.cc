#include "train/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json_text.h"
#include "base/option_name.h"
#include "base/shell_word.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/hash.h"
#include "lockstep/checkpoint/leader.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/lanes.h"
#include "lockstep/parallel/construction.h"
#include "lockstep/parallel/strategies.h"
#include "parallel/sync_norms.h"
#include "train/disk_use.h"
#include "train/exchange.h"
#include "train/exchange_state.h"
#include "train/footprint.h"
#include "train/memory_use.h"
#include "train/precision.h"
#include "train/read_state.h"
#include "train/stop_watch.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

LoaderOptions loader_options(const RunPlan& plan, std::optional<DeviceFeed>& feed) {
  const TrainerOptions& o = plan.options;
  std::function<void(Lane&)> place;
  if (feed) place = [&feed](Lane& lane) { feed->place(lane); };
  return {.lanes = o.lanes,
          .lane_batch = o.lane_batch,
          .seed = o.seed,
          .augment = o.augment,
          .last_step = o.last_step,
          .epochs = o.epochs,
          .steps = o.steps,
          .first_step = plan.first_step,
          .threads = o.loader_threads,
          .place = std::move(place)};
}

// What would stop the run in the middle of an epoch.
void check_norms(torch::nn::Module& model, const TrainerOptions& o, int workers) {
  check_sync_norms(model, o.lanes, workers);
  if (o.last_step == LastStep::short_ && o.lanes > 1 && has_sync_norms(model))
    throw UsageError("last_step = short leaves some of the " + std::to_string(o.lanes) +
                     " lanes out of an epoch's last step, and SyncBatchNorm takes its statistics over all of "
                     "them; accepted: wrap or drop");
}

}  // namespace

TrainRun::TrainRun(std::unique_ptr<RunPlan> plan, std::shared_ptr<torch::nn::Module> model, Task task,
                   Group world)
    : plan_(std::move(plan)),
      options_(plan_->options),
      world_(std::move(world)),
      device_(begin_device(options_)),
      recording_(options_.cuda_graph ? std::make_unique<RecordingStream>(device_) : nullptr),
      task_(in_precision(std::move(task), parse_precision(plan_->options.precision), device_)),
      data_record_(record_of(*task_.train, task_.test.get(), plan_->data_path)),
      rss_before_(plan_->resident_before >= 0 ? plan_->resident_before : memory_bytes("VmRSS")),
      model_(std::move(model)),
      strategy_(begin_strategy()),
      optimizer_(begin_optimizer()),
      feed_(device_.is_cpu() && !options_.channels_last
                ? std::nullopt
                : std::optional<DeviceFeed>(std::in_place, device_, options_.channels_last)),
      loader_(task_.train, world_.rank(), world_.size(), loader_options(*plan_, feed_)),
      finite_(options_.on_nan, *strategy_,
              optimizer_->scaler() != nullptr ? FiniteWatch::Loss::scaled : FiniteWatch::Loss::plain,
              leads() ? plan_->sink : EventSink()),
      loop_(options_, task_, *strategy_, *optimizer_, loader_, finite_, feed_ ? &*feed_ : nullptr),
      state_{.step = plan_->first_step, .epoch = 0, .best_accuracy = plan_->best_accuracy} {
  owners_.emplace(*strategy_);
  limit_memory(device_, options_);
  if (!plan_->checkpoint.empty()) {
    optimizer_->load(plan_->checkpoint, *owners_, world_);
    about_exchange_ = load_exchange(plan_->checkpoint, strategy_->exchange(), world_);
    if (leads())  // who has the checkpoint, and tells
      finite_.go_on_after(read_state(plan_->checkpoint).value("steps_not_finite", std::int64_t{0}));
  }
  facts_ = look_at_arithmetic(world_, plan_->checkpoint);
  check_algorithm(world_, options_.strategy, options_.parallel, largest_bucket_bytes(*strategy_));
}

TrainerResult TrainRun::run() {
  if (plan_->first_step > loader_.steps() || (plan_->first_step == loader_.steps() && summarised())) {
    nothing_left();
    return result();
  }
  // All is checked: now the folder may change.
  recorder_.emplace(*plan_, task_, world_,
                    RunFacts{.steps = loader_.steps(),
                             .steps_per_epoch = loader_.steps_per_epoch(),
                             .loss_floor = task_.test ? task_.test->loss_floor() : std::nullopt});
  announce();
  if (on_disk()) {
    const DiskUse use = disk_use(*optimizer_, *strategy_, own_lanes());
    tell({{"event", "note"}, {"text", describe(use)}});
  }
  saver_.emplace(world_,
                 CheckpointStore(RunFolder::checkpoints_of(options_.out), static_cast<int>(options_.keep)),
                 options_.checkpoint_async == "on" ? Saver::Mode::in_background : Saver::Mode::at_once,
                 [this](const SaveReport& report) { checkpoint_is_there(report); });
  loop_.set_saver(&*saver_);
  const StopWatch watch;
  while (Step* const step = loop_.next()) {
    train_step(*step);
    const bool ended = step->ends_epoch || state_.step == loader_.steps();
    if (ended) end_epoch(*step);
    const bool due = options_.checkpoint_every > 0 ? state_.step % options_.checkpoint_every == 0
                                                   : options_.checkpoint_every == 0 && ended;
    if (loop_.stop() != 0 || due) checkpoint();
    if (loop_.stop() != 0 && state_.step < loader_.steps()) {
      saver_->wait();
      stop_early();
      return result();
    }
  }
  if (state_.step == plan_->first_step)
    evaluate_now();
  else if (saved_step_ != state_.step && options_.checkpoint_every >= 0)
    checkpoint();
  saver_->wait();
  const Json summary = finish();
  tell({{"event", "done"},
        {"summary", summary},
        {"steps_here", state_.step - plan_->first_step},
        {"on_nan", options_.on_nan},
        {"page", options_.out + "/index.html"}});
  return result();
}

bool TrainRun::on_disk() const { return options_.offload || options_.parallel.offload_params; }

int TrainRun::own_lanes() const { return lanes_of(world_.rank(), world_.size(), options_.lanes).count; }

void TrainRun::tell(const Json& event) const {
  if (leads()) plan_->sink(event);
}

std::unique_ptr<Strategy> TrainRun::begin_strategy() const {
  check_folders(options_, world_);
  check_same_data(world_, data_record_);
  check_same_data(plan_->data, data_record_, options_.data_name, plan_->resumed,
                  option_text("init", shell_word(plan_->resumed)) + " for a new run with other data");
  for_each_unit(*model_, [this](torch::nn::Module& module) {
    apply_precision(parse_precision(options_.precision), module);
    move_model(module, device_, options_.channels_last);
  });
  begin_weights(*plan_, *model_, world_);
  if (!model_->is_training())
    model_->train();  // else as the program wants its parts: a norm may be in eval()
  check_norms(*model_, options_, world_.size());
  StrategyOptions parallel = options_.parallel;
  parallel.measure_lanes = parallel.measure_lanes || options_.measure == "noise";
  return make_strategy(options_.strategy, model_, world_, parallel);
}

// A disk that can't be used on one machine ends the run on all, before anything is trained.
std::unique_ptr<TrainOptimizer> TrainRun::begin_optimizer() {
  if (!options_.offload) return make_optimizer(options_, *strategy_);
  std::unique_ptr<TrainOptimizer> optimizer;
  run_on_all(world_, "putting the optimizer's state on disk",
             [&] { optimizer = make_optimizer(options_, *strategy_); });
  return optimizer;
}

// A run that was killed after its last checkpoint has no summary, or that of an earlier part.
bool TrainRun::summarised() const {
  int there = 0;
  if (leads()) {
    const Json summary = try_json_file<Json>(options_.out + "/summary.json");
    there = summary.is_object() && summary.value("steps", Json()) == loader_.steps() ? 1 : 0;
  }
  return world_.all_reduce(there, {.op = ReduceOp::max}) != 0;
}

void TrainRun::evaluate_now() {
  evaluation_.reset();
  if (options_.eval_every > 0 && task_.test)
    evaluation_ = evaluate(*strategy_, task_, options_.eval_batch, [this](const Batch& batch) {
      return moved(batch, device_, options_.channels_last);
    });
}

void TrainRun::train_step(Step& step) {
  StepResult done = loop_.train(step);
  state_.step = done.record.step;
  state_.epoch = done.record.epoch;
  profiler_.add(state_.step - plan_->first_step, done.record, done.buckets, done.backward_begin_ns,
                strategy_->last_exchange());
  recorder_->add_step(done.record, std::move(done.buckets), std::move(done.spans));
  saver_->advance(loop_.standings());
  if (finite_.found()) saver_->hold_update();
  if (const std::string found = finite_.end_step(state_.step); !found.empty()) stop_not_finite(found);
}

void TrainRun::end_epoch(const Step& step) {
  const bool last = state_.step == loader_.steps();
  evaluation_.reset();
  if (options_.eval_every > 0 && (last || (step.epoch + 1) % options_.eval_every == 0)) evaluate_now();
  if (const auto accuracy = accuracy_of(task_, evaluation_))
    state_.best_accuracy = std::max(state_.best_accuracy.value_or(0), *accuracy);
  recorder_->end_epoch(step.epoch + 1, evaluation_);
}

// That this process knows of; empty: none.
std::string TrainRun::newest_checkpoint() const {
  return (checkpoint_.empty() ? plan_->checkpoint : checkpoint_).string();
}

// Rank 0 knows the checkpoints; all say what it says.
void TrainRun::stop_not_finite(const std::string& found) {
  recorder_->end_epoch(state_.epoch, {});
  saver_->wait();
  run_on_leader(world_, "stopping", [&] {
    const std::string newest = newest_checkpoint();
    // To go on as it was would lead to the same place.
    tell({{"event", "checkpoint"}, {"path", ""}, {"resume", ""}});
    throw SystemError(found + "; stopped (" + option_text("on_nan", "skip") + " leaves such steps out); " +
                      (newest.empty()
                           ? "there is no checkpoint; a smaller " + option_text("lr") + " may help"
                           : fmt::format("the newest checkpoint is {}; to go on with a smaller rate: {}",
                                         newest, plan_->how_to_calm(newest))));
  });
  throw SystemError(found);  // not reached: the leader has thrown
}

// Weights that are not finite never push out those that are.
void TrainRun::checkpoint() {
  const std::int64_t since = now_ns();
  saved_step_ = state_.step;
  state_.steps_not_finite = finite_.steps_not_finite();
  const std::string weights = first_not_finite(*strategy_);
  if (!weights.empty()) {
    const std::string found =
        fmt::format("step {}: the first weight that is not finite is {}", state_.step, weights);
    if (options_.on_nan != "go-on") stop_not_finite(found);
    tell({{"event", "note"}, {"text", found + "; no checkpoint is written"}});
    return;
  }
  if (recording_) wait_for_device(device_);  // the saver's thread reads on another stream
  saver_->begin(state_.step,
                training_state(*plan_, data_record_, facts_.facts, state_, *strategy_, *optimizer_, *owners_),
                *owners_, since);
}

void TrainRun::checkpoint_is_there(const SaveReport& report) {
  ++saves_.count;
  saves_.pause_ms = std::max(saves_.pause_ms, report.pause_ms);
  saves_.write_ms = std::max(saves_.write_ms, report.write_ms);
  saves_.copied_bytes = std::max(saves_.copied_bytes, report.copied_bytes);
  if (!leads()) return;
  checkpoint_ = report.folder;
  tell({{"event", "checkpoint"},
        {"path", checkpoint_.string()},
        {"resume", plan_->how_to_resume},
        {"pause_ms", report.pause_ms},
        {"write_ms", report.write_ms}});
}

void TrainRun::stop_early() {
  stopped_by_ = loop_.stop();
  recorder_->end_epoch(state_.epoch, {});
  finish();
  tell({{"event", "stopped"},
        {"signal", stopped_by_},
        {"step", state_.step},
        {"checkpoint", newest_checkpoint()},
        {"resume", plan_->how_to_resume}});
}

// The summary, on rank 0.
Json TrainRun::finish() {
  Json memory = memory_figures(options_, *strategy_, *optimizer_, rss_before_);  // then all is in one place
  if (!device_.is_cpu()) memory["device"] = device_figures(device_, arithmetic());
  const std::string hash = hash_parameters();
  Json rest = {{"accuracy", or_null(accuracy_of(task_, evaluation_))},
               {"validation_loss", evaluation_ ? Json(evaluation_->loss) : Json()},
               {"best_accuracy", or_null(state_.best_accuracy)},
               {"params_sha256", hash},
               {"steps_not_finite", finite_.steps_not_finite()},
               {"precision", options_.precision},
               {"wire_bytes", wire_bytes_a_step(world_, loop_.wire_bytes())}};
  rest.update(memory);
  if (on_disk()) rest["offload"] = to_json(disk_use(*optimizer_, *strategy_, own_lanes()));
  if (const GradScaler* const scaler = optimizer_->scaler())
    rest.update({{"steps_skipped", scaler->skipped()}, {"loss_scale", scaler->scale()}});
  for (std::size_t i = 0; evaluation_ && i < task_.metrics.size(); ++i)
    if (task_.metrics[i].first != "accuracy")
      rest["metrics"][task_.metrics[i].first] = evaluation_->metrics[i];
  profiler_.add_prediction(*strategy_, rest);
  rest["bucket_cap_mb"] = strategy_->bucket_cap_mb();
  rest["engine"] = world_.engine();
  const auto copied = world_.all_gather(static_cast<std::int64_t>(saves_.copied_bytes));
  if (saves_.count > 0)
    rest.update({{"checkpoints_written", saves_.count},
                 {"checkpoint_pause_ms", saves_.pause_ms},
                 {"checkpoint_write_ms", saves_.write_ms},
                 {"checkpoint_copied_bytes", copied}});
  if (const auto& figures = strategy_->exchange().figures) {
    const ExchangeFigures last = figures();
    rest["compress"] = {{"method", last.about},
                        {"ratio", last.sent_bytes > 0 ? Json(last.dense_bytes / last.sent_bytes) : Json()}};
    if (!last.history.empty()) rest["compress"]["history"] = last.history;
  }
  Json summary = recorder_->finish(rest);
  std::vector<double> loss = {NAN};
  if (leads() && summary.at("final_loss").is_number()) loss[0] = summary.at("final_loss").get<double>();
  world_.broadcast(buffer(loss), 0);
  if (std::isfinite(loss[0])) final_loss_ = loss[0];
  return summary;
}

std::string TrainRun::hash_parameters() const {
  const auto each = strategy_->each_whole();
  return params_sha256(*model_, [&](const torch::Tensor& tensor) { each.bring(tensor); });
}

TrainerResult TrainRun::result() const {
  TrainerResult result{.steps = state_.step,
                       .final_loss = final_loss_,
                       .params_sha256 = hash_parameters(),
                       .stopped_by = stopped_by_};
  if (!evaluation_) return result;
  result.validation_loss = evaluation_->loss;
  for (std::size_t i = 0; i < task_.metrics.size(); ++i)
    result.metrics[task_.metrics[i].first] = evaluation_->metrics[i];
  return result;
}

}  // namespace lockstep
