#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "cli/step_bench.h"
#include "cli/train_exchange.h"
#include "cli/train_optimizer.h"
#include "cli/train_options.h"
#include "cli/train_task.h"
#include "grad/backward_hooks.h"
#include "launch/worker_events.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/init.h"
#include "lockstep/observe/histogram.h"
#include "lockstep/parallel/strategies.h"
#include "report/progress.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kBlock = 5;   // steps before the other kind has its turn
constexpr std::int64_t kWarmUp = 4;  // steps of each kind that are not counted

// synchronized: gradients are exchanged. alone: each worker for itself. in_phase: alone, but all begin each
// step together: what is lost to waiting for the slowest, and to all using the memory at the same moment,
// before a single byte is exchanged.
enum class Kind : unsigned char { synchronized, alone, in_phase };

// Workers that step alone drift apart.
StrategyOptions without_checks(const TrainOptions& o) {
  StrategyOptions options = strategy_options(o);
  options.check_replicas_every = 0;
  return options;
}

class StepBench {
 public:
  StepBench(const TrainOptions& options, const Group& world)
      : options_(options),
        world_(world),
        data_(make_data(options)),
        model_(make_model(options, *data_.train)),
        strategy_(make_strategy(options.strategy, model_, world, without_checks(options))),
        optimizer_(make_optimizer(options, *strategy_)),
        local_optimizer_(make_local_optimizer(options, *strategy_)),
        came_ns_(strategy_->parameters().size()),
        hooks_(trained(), [this](std::size_t i) { came_ns_[i] = now_ns(); }) {
    model_->train();
    std::vector<std::int64_t> indices(static_cast<std::size_t>(options.lane_batch));
    std::iota(indices.begin(), indices.end(), world.rank() * options.lane_batch);
    batch_ = data_.train->get(indices, nullptr);
    optimizer_->set_lr(*options.lr);
  }

  // Milliseconds of each of `count` steps.
  std::vector<double> block(Kind kind, std::int64_t count) {
    world_.barrier();
    std::vector<double> times;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t begin = now_ns();
      step(kind);
      keep(kind, begin);
      if (kind == Kind::in_phase) world_.barrier();
      times.push_back(static_cast<double>(now_ns() - begin) / 1e6);
    }
    return times;
  }

  // Everybody's, in one list.
  std::vector<double> gather(const std::vector<double>& mine) const {
    std::vector<double> all(mine.size() * static_cast<std::size_t>(world_.size()));
    world_.all_gather(buffer(mine), buffer(all));
    std::ranges::sort(all);
    return all;
  }

  // What was measured so far is forgotten.
  void start_over() {
    records_.clear();
    synchronized_.clear();
    in_phase_.clear();
  }

  // Collective.
  Crowding measure_crowding() {
    return cli::measure_crowding(world_, [this] { step(Kind::alone); });
  }

  // Of this rank's synchronized steps.
  double comm_fraction() const { return figures_of(records_).comm_fraction; }

  // From the steps in phase, which exchange nothing: a bucket is full when the slowest worker's is.
  // Collective.
  std::optional<StepPrediction> predict(const Crowding& crowding) {
    std::vector<double> offsets;
    for (const auto& step : in_phase_) offsets.insert(offsets.end(), step.begin(), step.end());
    world_.all_reduce(buffer(offsets), {.op = ReduceOp::max});
    std::vector<StepTimes> times;
    for (std::size_t at = 0; at < offsets.size(); at += in_phase_.front().size()) {
      const double* const o = &offsets[at];
      StepTimes t{.before_s = o[0], .backward_s = o[1] - o[0], .after_s = o[2]};
      t.ready_s.resize(strategy_->last_exchange().buckets.size());
      for (std::size_t i = 0; i < came_ns_.size(); ++i) {
        double& ready = t.ready_s[static_cast<std::size_t>(strategy_->bucket_of(i))];
        ready = std::max(ready, o[3 + i] - o[0]);
      }
      times.push_back(std::move(t));
    }
    StepProfile profile = profile_of(times);
    double buffers_s = 0;
    if (!expect_exchange(*strategy_, options_, profile, buffers_s)) return {};
    profile.after_s += buffers_s;
    profile.crowding = crowding;
    const StepPrediction predicted = predict_step(profile);
    explain(profile, predicted);
    return predicted;
  }

  double bucket_cap_mb() const { return strategy_->bucket_cap_mb(); }

  std::int64_t parameters() const {
    std::int64_t count = 0;
    for (const auto& p : model_->parameters()) count += p.numel();
    return count;
  }

 private:
  // For who wants to know why a prediction is as it is: what it was made from, and what became of it.
  void explain(const StepProfile& profile, const StepPrediction& predicted) const {
    double buckets_s = 0, largest_s = 0;
    for (const BucketProfile& b : profile.buckets) {
      buckets_s += b.exchange_s;
      largest_s = std::max(largest_s, b.exchange_s);
    }
    log().debug(
        "alone: before {:.1f} ms, backward {:.1f}, after {:.1f}; {} buckets of {:.1f} in all, the largest "
        "{:.1f}",
        profile.before_s * 1e3, profile.backward_s * 1e3, profile.after_s * 1e3, profile.buckets.size(),
        buckets_s * 1e3, largest_s * 1e3);
    log().debug("predicted: backward {:.1f} ms, exchange {:.1f}, exposed {:.1f}, step {:.1f}",
                (predicted.compute_s - profile.before_s - profile.after_s) * 1e3, predicted.comm_s * 1e3,
                predicted.exposed_s * 1e3, predicted.step_s * 1e3);
    const StepProfile measured = profile_of(synchronized_);
    std::vector<double> comm, exposed, step;
    for (const StepRecord& r : records_) {
      comm.push_back(static_cast<double>(r.comm_ns) / 1e6);
      exposed.push_back(static_cast<double>(r.exposed_ns) / 1e6);
      step.push_back(static_cast<double>(r.step_ns()) / 1e6);
    }
    for (auto* list : {&comm, &exposed, &step}) std::ranges::sort(*list);
    log().debug(
        "measured: before {:.1f} ms, backward {:.1f}, exchange {:.1f}, exposed {:.1f}, after {:.1f}, step "
        "{:.1f}",
        measured.before_s * 1e3, measured.backward_s * 1e3, quantile_of_sorted(comm, 0.5),
        quantile_of_sorted(exposed, 0.5), measured.after_s * 1e3, quantile_of_sorted(step, 0.5));
  }

  void step(Kind kind) {
    if (kind != Kind::synchronized) {
      {
        const auto alone = strategy_->no_sync();
        forward_backward();
      }
      backward_end_ns_ = now_ns();
      local_optimizer_->step();
      strategy_->reset();
    } else {
      optimizer_->zero_grad();
      forward_backward();
      optimizer_->step();
    }
  }
  void forward_backward() {
    const torch::Tensor loss = loss_of(model_->forward(batch_.data), batch_.target);
    backward_begin_ns_ = now_ns();
    loss.backward();
  }

  // The step has just ended. In phase: seconds from its beginning to backward's, to backward's end and to
  // each gradient; third, how long the optimizer took.
  void keep(Kind kind, std::int64_t begin) {
    const std::int64_t end = now_ns();
    const auto seconds = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-9; };
    if (kind == Kind::synchronized) {
      StepRecord record{.begin_ns = begin, .end_ns = end};
      take_exchange(strategy_->last_exchange(), record);
      records_.push_back(record);
      const ExchangeLog& log = strategy_->last_exchange();
      synchronized_.push_back({.before_s = seconds(backward_begin_ns_ - begin),
                               .backward_s = seconds(log.wait_begin_ns - backward_begin_ns_),
                               .after_s = seconds(end - log.wait_end_ns)});
    } else if (kind == Kind::in_phase) {
      std::vector<double> step = {seconds(backward_begin_ns_ - begin), seconds(backward_end_ns_ - begin),
                                  seconds(end - backward_end_ns_)};
      for (const std::int64_t came : came_ns_) step.push_back(seconds(came - begin));
      in_phase_.push_back(std::move(step));
    }
  }

  std::vector<torch::Tensor> trained() const {
    std::vector<torch::Tensor> tensors;
    for (const NamedTensor& p : strategy_->parameters()) tensors.push_back(p.tensor);
    return tensors;
  }

  const TrainOptions& options_;
  Group world_;
  TrainData data_;
  std::shared_ptr<Model> model_;
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<TrainOptimizer> optimizer_, local_optimizer_;
  Batch batch_;
  std::vector<std::int64_t> came_ns_;  // each parameter's gradient, in the last backward
  BackwardHooks hooks_;
  std::int64_t backward_begin_ns_ = 0, backward_end_ns_ = 0;
  std::vector<StepRecord> records_;
  std::vector<StepTimes> synchronized_;
  std::vector<std::vector<double>> in_phase_;
};

}  // namespace

int run_step_bench_worker(const Json& request) {
  TrainOptions options;
  merge_json(options, request.at("options"), "the request");
  check_options(options);
  at::set_num_threads(static_cast<int>(options.threads));
  const Group world = init();
  options.data = "synthetic";
  options.examples = options.lane_batch * world.size();
  options.eval_examples = 1;
  StepBench bench(options, world);
  const std::string report_to = request.value("report_to", "");
  Progress progress;
  std::optional<EventReporter> reporter;
  if (world.rank() == 0 && !report_to.empty()) reporter.emplace(report_to);
  if (world.rank() == 0 && report_to.empty())
    reporter.emplace([&](const Json& event) {
      if (event.at("event") == "progress" && is_terminal(2))
        progress.show(event.at("text").get<std::string>());
      if (event.at("event") != "row") return;
      progress.clear();
      print_step_row(event.at("row"), request.value("json", false));
    });

  constexpr Kind kKinds[] = {Kind::synchronized, Kind::alone, Kind::in_phase};
  for (const Kind kind : kKinds) bench.block(kind, kWarmUp);
  const Crowding crowding = bench.measure_crowding();
  bench.start_over();
  std::vector<double> times[std::size(kKinds)];
  for (std::int64_t done = 0; done < options.steps; done += kBlock) {
    const std::int64_t count = std::min(kBlock, options.steps - done);
    for (const Kind kind : kKinds) {
      const std::vector<double> measured = bench.block(kind, count);
      std::vector<double>& to = times[static_cast<std::size_t>(kind)];
      to.insert(to.end(), measured.begin(), measured.end());
    }
    if (reporter)
      reporter->send(
          {{"event", "progress"}, {"text", fmt::format("step {} of {}", done + count, options.steps)}});
  }
  for (std::vector<double>& list : times) list = bench.gather(list);
  const auto quantile = [&](Kind kind, double q) {
    return quantile_of_sorted(times[static_cast<std::size_t>(kind)], q);
  };
  const double step_ms = quantile(Kind::synchronized, 0.5);
  const double alone_ms = quantile(Kind::alone, 0.5);
  const std::optional<StepPrediction> predicted = bench.predict(crowding);
  if (reporter)
    reporter->send(
        {{"event", "row"},
         {"row",
          {{"model", options.model},
           {"workers", world.size()},
           {"lane_batch", options.lane_batch},
           {"params", bench.parameters()},
           {"bucket_cap_mb", bench.bucket_cap_mb()},
           {"steps", options.steps},
           {"step_ms", step_ms},
           {"alone_ms", alone_ms},
           {"efficiency", alone_ms / step_ms},
           {"samples_per_s", static_cast<double>(options.lane_batch * world.size()) / step_ms * 1e3},
           {"step_ms_p95", quantile(Kind::synchronized, 0.95)},
           {"alone_ms_p95", quantile(Kind::alone, 0.95)},
           {"in_phase_ms", quantile(Kind::in_phase, 0.5)},
           {"comm_fraction", bench.comm_fraction()},
           {"predicted_step_ms", predicted ? Json(predicted->step_s * 1e3) : Json()},
           {"predicted_comm_fraction", predicted ? Json(predicted->comm_fraction()) : Json()},
           {"engine", world.engine()}}}});
  world.barrier();
  return 0;
}

}  // namespace lockstep::cli
