#include "cli/train_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <ctime>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/train_checkpoint.h"
#include "cli/train_evaluate.h"
#include "cli/train_exchange.h"
#include "cli/train_finite.h"
#include "cli/train_optimizer.h"
#include "cli/train_task.h"
#include "cli/train_threads.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/hash.h"
#include "lockstep/checkpoint/leader.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/data/loader.h"
#include "lockstep/launch/launcher.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/parallel/strategies.h"
#include "report/folder_content.h"
#include "report/folder_lock.h"
#include "report/table.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

// Steps from whose compute the step time is predicted, counted from 1: after the first, in which memory is
// touched and buckets are laid out anew.
constexpr std::int64_t kSettled = 3;
constexpr std::int64_t kLastProfiled = 50;

constexpr std::size_t kPerLane = 3;  // what the workers tell of a lane: its weight, loss and number

constexpr int kStops[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
volatile std::sig_atomic_t told_to_stop = 0;  // the signal
std::atomic<std::int64_t> told_at_s = 0;      // on the monotonic clock

// For a handler. A signal to every process of a job comes here twice, the second time from the launcher.
void note_stop(int signal) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  if (told_to_stop == 0) {
    told_at_s = now.tv_sec;
    told_to_stop = signal;
  } else if (now.tv_sec - told_at_s > kOneStop.count()) {
    std::signal(signal, SIG_DFL);
    ::raise(signal);  // when the handler has returned
  }
}

// While it lives the signals that stop a job (SIGHUP: a terminal or a connection is gone) are remembered, but
// for those that are ignored (nohup); another one, kOneStop later or more, ends the process.
class StopWatch {
 public:
  StopWatch() {
    struct sigaction action {};
    action.sa_handler = note_stop;
    action.sa_flags = SA_RESTART;
    for (const int signal : kStops) {
      struct sigaction before {};
      if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) continue;
      ::sigaction(signal, &action, nullptr);
      watched_.push_back(signal);
    }
  }
  ~StopWatch() {
    for (const int signal : watched_) std::signal(signal, SIG_DFL);
  }
  StopWatch(const StopWatch&) = delete;
  StopWatch& operator=(const StopWatch&) = delete;

 private:
  std::vector<int> watched_;
};

// From /proc/self/status: "VmRSS" now, "VmHWM" the most so far.
std::int64_t memory_bytes(const std::string& what) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(what + ":")) return std::atoll(line.c_str() + what.size() + 1) * 1024;
  return 0;
}

// "11.2 M", "34.5 K"
std::string in_words(std::int64_t count) {
  const auto number = static_cast<double>(count);
  return count >= 1'000'000 ? fmt::format("{:.1f} M", number / 1e6) : fmt::format("{:.1f} K", number / 1e3);
}

std::vector<std::int64_t> gather_number(const Group& world, std::int64_t number) {
  std::vector<std::int64_t> mine = {number}, all(static_cast<std::size_t>(world.size()));
  world.all_gather(buffer(mine), buffer(all));
  return all;
}

LoaderOptions loader_options(const TrainPlan& plan) {
  const TrainOptions& o = plan.options;
  return {.lanes = static_cast<int>(o.lanes),
          .lane_batch = static_cast<int>(o.lane_batch),
          .seed = o.seed,
          .augment = !o.no_augment,
          .last_step = parse_last_step(o.last_step),
          .epochs = o.epochs,
          .steps = o.steps,
          .first_step = plan.first_step,
          .threads = static_cast<int>(o.loader_threads)};
}

ScheduleOptions schedule_options(const TrainOptions& o) {
  return {.kind = parse_schedule(o.schedule),
          .lr = *o.lr,
          .final_lr = o.min_lr,
          .warmup_steps = o.warmup_steps,
          .every = o.lr_every,
          .factor = o.lr_factor};
}

class Worker {
 public:
  Worker(const TrainPlan& plan, const Group& world, EventSink sink)
      : plan_(plan),
        options_(plan.options),
        world_(world),
        sink_(std::move(sink)),
        data_(load_data()),
        rss_before_(memory_bytes("VmRSS")),
        model_(load_model()),
        strategy_(make_strategy(options_.strategy, model_, world, strategy_options(options_))),
        optimizer_(make_optimizer(options_, *strategy_)),
        loader_(data_.train, world.rank(), world.size(), loader_options(plan)),
        finite_(options_.on_nan, *model_, leads() ? sink_ : EventSink()),
        state_{.step = plan.first_step, .epoch = 0, .best_accuracy = plan.best_accuracy} {
    if (!plan_.checkpoint.empty()) {
      run_on_leader(world_, "reading the optimizer's state", [&] { optimizer_->load(plan_.checkpoint); });
      optimizer_->share(world_);
    }
    for (int rank = 0; rank < world_.size(); ++rank)
      most_lanes_ =
          std::max(most_lanes_, lanes_of(rank, world_.size(), static_cast<int>(options_.lanes)).count);
    check_algorithm(world_, options_, largest_bucket_bytes(*strategy_));
  }

  int run() {
    if (plan_.first_step > loader_.steps() || (plan_.first_step == loader_.steps() && summarised()))
      return nothing_left();
    // All is checked: now the folder may change.
    recorder_.emplace(plan_, world_, sink_,
                      RunFacts{.steps = loader_.steps(),
                               .steps_per_epoch = loader_.steps_per_epoch(),
                               .loss_floor = data_.test->loss_floor()});
    announce();
    const StopWatch watch;
    while (Step* const step = next()) {
      train_step(*step);
      const bool ended = step->ends_epoch || state_.step == loader_.steps();
      if (ended) end_epoch(*step);
      const bool due = options_.checkpoint_every > 0 ? state_.step % options_.checkpoint_every == 0
                                                     : options_.checkpoint_every == 0 && ended;
      if (stop_ != 0 || due) checkpoint();
      if (stop_ != 0 && state_.step < loader_.steps()) return stop();
    }
    if (state_.step == plan_.first_step)
      evaluate_again();
    else if (saved_step_ != state_.step && options_.checkpoint_every >= 0)
      checkpoint();
    const Json summary = finish();
    if (leads())
      sink_({{"event", "done"},
             {"summary", summary},
             {"steps_here", state_.step - plan_.first_step},
             {"on_nan", options_.on_nan},
             {"page", options_.out + "/index.html"}});
    return 0;
  }

 private:
  bool leads() const { return world_.rank() == 0; }

  // A run that was killed after its last checkpoint has no summary, or that of an earlier part.
  bool summarised() const {
    std::vector<std::uint8_t> there = {0};
    if (leads()) {
      std::ifstream file(options_.out + "/summary.json");
      const Json summary = Json::parse(file, nullptr, false);
      there[0] = summary.is_object() && summary.value("steps", Json()) == loader_.steps();
    }
    world_.broadcast(buffer(there), 0);
    return there[0] != 0;
  }

  void evaluate_again() {
    if (options_.eval_every > 0) evaluation_ = evaluate(*model_, *data_.test, options_.eval_batch, world_);
  }

  // What a process that was killed at the very end left.
  void sweep() const try {
    const FolderLock lock(options_.out);
    remove_leftovers(options_.out);
  } catch (const SystemError&) {
    // A folder that can't be written has nothing of that kind, or it has to stay.
  }

  // The run that was to go on is through. Its folder stays as it is.
  int nothing_left() const {
    if (plan_.first_step > loader_.steps())
      throw UsageError(fmt::format("--epochs {} ends at step {}, and {} has done {}; accepted: {} or more",
                                   options_.epochs, loader_.steps(), options_.resume, plan_.first_step,
                                   (plan_.first_step - 1) / loader_.steps_per_epoch() + 1));
    const bool any_length = options_.schedule != "cosine" && options_.schedule != "linear";
    if (leads()) sweep();
    if (leads())
      sink_(
          {{"event", "through"},
           {"step", plan_.first_step},
           {"steps", loader_.steps()},
           {"text",
            fmt::format("{} is through: step {} of {}{}", options_.resume, plan_.first_step, loader_.steps(),
                        any_length ? fmt::format("; --steps N above {} goes on", loader_.steps()) : "")}});
    return 0;
  }

  TrainData load_data() {
    const TrainOptions located = locate_data(options_, plan_.data);
    TrainData data = make_data(located);
    data_record_ = record_data(located, data);
    check_same_data(world_, data_record_);
    check_same_data(options_, plan_.data, data_record_);
    return data;
  }

  // Everybody gets rank 0's weights: only its machine needs the checkpoint.
  std::shared_ptr<Model> load_model() const {
    auto model = make_model(options_, *data_.train);
    const auto load = [&](const std::filesystem::path& checkpoint) { load_weights(checkpoint, *model); };
    if (!plan_.checkpoint.empty())
      run_on_leader(world_, "reading the weights", [&] { load(plan_.checkpoint); });
    else if (!plan_.init.empty())  // of a run that may go on meanwhile
      run_on_leader(world_, "reading the weights", [&] { use_checkpoint(options_.init, load); });
    model->train();
    return model;
  }

  std::int64_t parameter_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& p : model_->parameters()) bytes += p.numel() * p.element_size();
    return bytes;
  }

  void announce() const {
    if (!leads()) return;
    std::int64_t parameters = 0;
    for (const auto& p : model_->parameters()) parameters += p.numel();
    const std::string from = !plan_.checkpoint.empty()
                                 ? fmt::format(", going on after step {}", plan_.first_step)
                             : !plan_.init.empty() ? fmt::format(", with the weights of {}", options_.init)
                                                   : "";
    const std::optional<double> least = data_.test->loss_floor();
    const std::string floor = least ? fmt::format(", loss floor {:.4f}", *least) : "";
    const bool own = plan_.folder_use == FolderUse::resume;  // the checkpoint lies in this run's folder
    sink_({{"event", "begin"},
           {"checkpoint", own ? plan_.checkpoint.string() : ""},
           {"resume", resume_command(options_)},
           {"text", fmt::format("{} ({} parameters) on {} ({}{}): {}, {} × {}, {}{}", options_.model,
                                in_words(parameters), options_.data, counted(data_.train->size(), "example"),
                                floor, counted(world_.size(), "worker"), counted(options_.lanes, "lane"),
                                options_.lane_batch, counted(loader_.steps(), "step"), from)}});
  }

  Step* next() {
    times_ = {};
    spans_.clear();
    times_.begin_ns = now_ns();
    const std::int64_t waited = loader_.waited_ns();
    Step* const step = loader_.next();
    times_.data_wait_ns = loader_.waited_ns() - waited;
    if (step != nullptr) add_span("data", times_.begin_ns, now_ns(), step->number);
    return step;
  }

  void add_span(const char* name, std::int64_t begin, std::int64_t end, std::int64_t step, int lane = -1) {
    if (options_.trace_steps == 0) return;
    spans_.push_back({.name = name,
                      .track = kComputeTrack,
                      .begin_ns = begin,
                      .end_ns = end,
                      .details = {{"step", step + 1}}});
    if (lane >= 0) spans_.back().details.emplace_back("lane", lane);
  }

  void train_step(Step& step) {
    times_.lr = lr_at(schedule_options(options_), step.number, loader_.steps());
    optimizer_->set_lr(times_.lr);
    std::vector<double> losses;  // kPerLane numbers, lane by lane
    finite_.begin_step();
    for (Lane& lane : step) {
      const auto scope = strategy_->lane(lane);
      const std::int64_t begin = now_ns();
      const torch::Tensor loss = loss_of(model_->forward(lane.data), lane.target);
      const std::int64_t middle = backward_begin_ns_ = now_ns();
      loss.backward();
      add_span("forward", begin, middle, step.number, lane.index);
      add_span("backward", middle, now_ns(), step.number, lane.index);
      losses.insert(losses.end(), {lane.weight, loss.item<double>(), static_cast<double>(lane.index)});
    }
    strategy_->synchronize();
    std::vector<BucketTimes> buckets = take_buckets(step.number);
    times_.loss = share_losses(std::move(losses));
    const std::int64_t synchronized = now_ns();
    if (finite_.accept(times_.loss, bad_lanes_))
      optimizer_->step();
    else
      strategy_->end_step();  // the weights stay as they were
    add_span("optimizer", synchronized, now_ns(), step.number);

    times_.step = state_.step = step.number + 1;
    times_.epoch = state_.epoch = step.epoch + 1;
    times_.samples = step.samples;
    times_.end_ns = now_ns();
    profile(buckets);
    recorder_->add_step(times_, std::move(buckets), std::move(spans_));
    if (const std::string found = finite_.end_step(state_.step); !found.empty()) stop_not_finite(found);
  }

  // That this process knows of; empty: none.
  std::string newest_checkpoint() const {
    return (checkpoint_.empty() ? plan_.checkpoint : checkpoint_).string();
  }

  // Rank 0 knows the checkpoints; all say what it says.
  [[noreturn]] void stop_not_finite(const std::string& found) {
    recorder_->end_epoch(state_.epoch, {}, {});
    run_on_leader(world_, "stopping", [&] {
      const std::string newest = newest_checkpoint();
      // To go on as it was would lead to the same place.
      sink_({{"event", "checkpoint"}, {"path", ""}, {"resume", ""}});
      throw SystemError(found + "; stopped (--on-nan skip leaves such steps out); " +
                        (newest.empty()
                             ? "there is no checkpoint; a smaller --lr may help"
                             : fmt::format("the newest checkpoint is {}; to go on with a smaller rate: {}",
                                           newest, calmer_command(options_, newest))));
    });
    throw SystemError(found);  // not reached: the leader has thrown
  }

  // The first steps after the run has settled tell what this worker computes.
  void profile(const std::vector<BucketTimes>& buckets) {
    const std::int64_t done = state_.step - plan_.first_step;
    if (done <= kSettled || done > kLastProfiled) return;
    const ExchangeLog& log = strategy_->last_exchange();
    const auto seconds = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-9; };
    StepTimes t{.waiting_s = seconds(times_.data_wait_ns),
                .before_s = seconds(backward_begin_ns_ - times_.begin_ns - times_.data_wait_ns),
                .backward_s = seconds(log.wait_begin_ns - backward_begin_ns_),
                .after_s = seconds(times_.end_ns - log.wait_end_ns)};
    for (const BucketTimes& b : buckets) {
      t.ready_s.push_back(seconds(b.ready_ns - backward_begin_ns_));
      t.exchange_s += seconds(b.end_ns - b.start_ns);
    }
    profiled_.push_back(std::move(t));
  }

  // What the cost table expects of the exchange, and its first steps of what goes on beside it. Backward as
  // it was measured has lost to the exchange what processor time that took.
  void add_prediction(Json& summary) {
    StepProfile profile = profile_of(profiled_);
    double buffers_s = 0;  // after_s has it
    const bool known = !profiled_.empty() && expect_exchange(*strategy_, options_, profile, buffers_s);
    if (known) profile.crowding = crowding_of(profiled_, profile);
    const StepPrediction predicted = predict_step(profile);
    summary["predicted_step_ms"] = known ? Json(predicted.step_s * 1e3) : Json();
    summary["predicted_comm_fraction"] = known ? Json(predicted.comm_fraction()) : Json();
    summary["bucket_cap_mb"] = strategy_->bucket_cap_mb();
    summary["engine"] = world_.engine();
  }

  // The step's loss over all lanes of all workers, added in the order of lanes: the same bits everywhere.
  // Also how the workers agree to stop.
  double share_losses(std::vector<double> mine) {
    mine.resize(kPerLane * static_cast<std::size_t>(most_lanes_));  // a weight of 0: no lane
    mine.push_back(static_cast<double>(told_to_stop));
    std::vector<double> all(mine.size() * static_cast<std::size_t>(world_.size()));
    world_.all_gather(buffer(mine), buffer(all));
    bad_lanes_.clear();
    double loss = 0, weight = 0;
    for (std::size_t at = 0; at < all.size(); at += mine.size()) {
      for (std::size_t i = at; i + 1 < at + mine.size(); i += kPerLane) {
        if (!std::isfinite(all[i + 1])) bad_lanes_.push_back(static_cast<int>(all[i + 2]));
        loss += all[i] * all[i + 1];
        weight += all[i];
      }
      stop_ = std::max(stop_, static_cast<int>(all[at + mine.size() - 1]));
    }
    // Which sign a NaN has is the processor's choice.
    const double mean = loss / weight;
    return std::isnan(mean) ? std::numeric_limits<double>::quiet_NaN() : mean;
  }

  // What became of the step's buckets, before the next step begins.
  std::vector<BucketTimes> take_buckets(std::int64_t step) {
    const ExchangeLog& log = strategy_->last_exchange();
    std::vector<BucketTimes> buckets = take_exchange(log, times_);
    for (const BucketTimes& b : buckets) {
      if (options_.trace_steps == 0) break;
      spans_.push_back({.name = fmt::format("bucket {}", b.bucket),
                        .track = kCommunicationTrack,
                        .begin_ns = b.start_ns,
                        .end_ns = b.end_ns,
                        .details = {{"step", step + 1}, {"bytes", static_cast<std::int64_t>(b.bytes)}}});
    }
    if (!buckets.empty()) add_span("wait for buckets", log.wait_begin_ns, log.wait_end_ns, step);
    return buckets;
  }

  void end_epoch(const Step& step) {
    const bool last = state_.step == loader_.steps();
    evaluation_.reset();
    if (options_.eval_every > 0 && (last || (step.epoch + 1) % options_.eval_every == 0)) {
      evaluation_ = evaluate(*model_, *data_.test, options_.eval_batch, world_);
      state_.best_accuracy = std::max(state_.best_accuracy.value_or(0), evaluation_->accuracy);
    }
    recorder_->end_epoch(step.epoch + 1, evaluation_ ? std::optional(evaluation_->loss) : std::nullopt,
                         evaluation_ ? std::optional(evaluation_->accuracy) : std::nullopt);
  }

  // Weights that are not finite never push out those that are.
  void checkpoint() {
    saved_step_ = state_.step;
    if (const std::string weights = first_not_finite(*model_); !weights.empty()) {
      const std::string found =
          fmt::format("step {}: the first weight that is not finite is {}", state_.step, weights);
      if (options_.on_nan != "go-on") stop_not_finite(found);
      if (leads()) sink_({{"event", "note"}, {"text", found + "; no checkpoint is written"}});
      return;
    }
    const TrainOptimizer::Writer write_optimizer = optimizer_->writer(world_);
    // Nobody changes the weights, or ends, before they are on disk.
    run_on_leader(world_, "writing a checkpoint", [&] {
      checkpoint_ = save_training(options_, data_record_, state_, *model_, write_optimizer);
      // Here, where it is there: a peer that was lost meanwhile is told only behind it.
      sink_({{"event", "checkpoint"}, {"path", checkpoint_.string()}, {"resume", resume_command(options_)}});
    });
  }

  int stop() {
    recorder_->end_epoch(state_.epoch, {}, {});
    finish();
    if (leads())
      sink_({{"event", "stopped"},
             {"signal", stop_},
             {"step", state_.step},
             {"checkpoint", newest_checkpoint()},
             {"resume", resume_command(options_)}});
    return stop_;
  }

  // The summary, on rank 0.
  Json finish() {
    const std::vector<std::int64_t> peaks = gather_number(world_, memory_bytes("VmHWM"));
    const std::int64_t parameters = parameter_bytes();
    const auto state_bytes = static_cast<std::int64_t>(optimizer_->state_bytes());
    const auto buckets = static_cast<std::int64_t>(strategy_->gradient_bytes());
    Json rest = {{"accuracy", evaluation_ ? Json(evaluation_->accuracy) : Json()},
                 {"validation_loss", evaluation_ ? Json(evaluation_->loss) : Json()},
                 {"best_accuracy", state_.best_accuracy ? Json(*state_.best_accuracy) : Json()},
                 {"params_sha256", params_sha256(*model_)},
                 {"steps_not_finite", finite_.steps_told()},
                 {"peak_rss_bytes", peaks},
                 {"memory",
                  {{"parameter_bytes", parameters},
                   {"gradient_bytes", buckets},
                   {"optimizer_bytes", state_bytes},
                   {"predicted_bytes", parameters + buckets + state_bytes},
                   {"measured_bytes", memory_bytes("VmRSS") - rss_before_}}}};
    add_prediction(rest);
    return recorder_->finish(rest);
  }

  const TrainPlan& plan_;
  const TrainOptions& options_;
  Group world_;
  EventSink sink_;
  DataRecord data_record_;
  TrainData data_;
  std::int64_t rss_before_;  // before the model was made
  std::shared_ptr<Model> model_;
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<TrainOptimizer> optimizer_;
  Loader loader_;
  FiniteWatch finite_;
  std::optional<TrainRecorder> recorder_;  // once there is something to record
  TrainState state_;
  int most_lanes_ = 0;          // that any worker carries
  std::vector<int> bad_lanes_;  // whose loss was not finite in the last step
  int stop_ = 0;                // the signal at which all ranks agreed to stop
  std::int64_t saved_step_ = -1;
  std::filesystem::path checkpoint_;
  std::optional<Evaluation> evaluation_;
  StepRecord times_;
  std::int64_t backward_begin_ns_ = 0;  // of the last lane
  std::vector<StepTimes> profiled_;
  std::vector<TraceSpan> spans_;
};

}  // namespace

bool stop_was_noted() { return told_to_stop != 0; }

int train(const TrainPlan& plan, const Group& world, const EventSink& sink) {
  pin_threads(plan.options.threads);
  return Worker(plan, world, sink).run();
}

}  // namespace lockstep::cli
