#include "lockstep/train/step_bench.h"

#include <algorithm>

#include "grad/backward_hooks.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/identity.h"
#include "lockstep/base/log.h"
#include "lockstep/observe/histogram.h"
#include "lockstep/parallel/construction.h"
#include "lockstep/parallel/strategies.h"
#include "parallel/sync_norms.h"
#include "train/device.h"
#include "train/exchange.h"
#include "train/optimizer.h"
#include "train/precision.h"

namespace lockstep {
namespace {

constexpr std::int64_t kBlock = 5;   // steps before the other kind has its turn
constexpr std::int64_t kWarmUp = 4;  // steps of each kind that are not counted

// See StepBenchResult.
enum class Kind : unsigned char { synchronized, alone, in_phase };

// Workers that step alone drift apart.
StrategyOptions without_checks(StrategyOptions options) {
  options.check_replicas_every = 0;
  return options;
}

// Its blocks without an exchange have no scaler either.
TrainerOptions without_scaling(TrainerOptions options) {
  options.loss_scaling = "off";
  return options;
}

class StepBench {
 public:
  StepBench(const ModuleRef& model, const Task& task, const Batch& batch, const TrainerOptions& options,
            const Group& world)
      : task_(task),
        batch_(batch),
        world_(world),
        strategy_(make_strategy(options.strategy, model, world, without_checks(options.parallel))),
        optimizer_(make_optimizer(options, *strategy_)),
        local_optimizer_(make_local_optimizer(options, *strategy_)),
        device_(strategy_->device()),
        came_ns_(strategy_->parameters().size()),
        hooks_(trained(), [this](std::size_t i) { came_ns_[i] = now_ns(); }) {
    model.pointer()->train();
    optimizer_->set_lr(options.schedule.lr);
  }

  // Milliseconds of each of `count` steps. A device computes behind the host's back: there it is waited for
  // once, behind the block, and each step gets its share of the time.
  std::vector<double> block(Kind kind, std::int64_t count) {
    wait_for_device(device_);
    world_.barrier();
    if (!device_.is_cpu()) return block_on_device(kind, count);
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

  std::vector<double> block_on_device(Kind kind, std::int64_t count) {
    const std::int64_t begin = now_ns();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t step_begin = now_ns();
      step(kind);
      if (kind == Kind::synchronized) keep(kind, step_begin);
      if (kind == Kind::in_phase) {
        wait_for_device(device_);
        world_.barrier();
      }
    }
    wait_for_device(device_);
    const double ms = static_cast<double>(now_ns() - begin) / 1e6 / static_cast<double>(count);
    return std::vector<double>(static_cast<std::size_t>(count), ms);
  }

  // Everybody's, sorted.
  std::vector<double> gather(const std::vector<double>& mine) const {
    std::vector<double> all;
    for (const std::vector<double>& one : world_.all_gather(mine))
      all.insert(all.end(), one.begin(), one.end());
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
    return lockstep::measure_crowding(world_, [this] { step(Kind::alone); });
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
    if (!expect_exchange(*strategy_, profile, buffers_s)) return {};
    profile.after_s += buffers_s;
    profile.crowding = crowding;
    const StepPrediction predicted = predict_step(profile);
    explain(profile, predicted);
    return predicted;
  }

  double bucket_cap_mb() const { return strategy_->bucket_cap_mb(); }
  // What is predicted is of the processor: host times say little of a device.
  bool predicts() const { return device_.is_cpu(); }

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
    log().debug(
        "measured: before {:.1f} ms, backward {:.1f}, exchange {:.1f}, exposed {:.1f}, after {:.1f}, step "
        "{:.1f}",
        measured.before_s * 1e3, measured.backward_s * 1e3, median_of(comm), median_of(exposed),
        measured.after_s * 1e3, median_of(step));
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
    const torch::Tensor loss = task_.loss(task_.forward(batch_), batch_);
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

  const Task& task_;
  const Batch& batch_;
  Group world_;
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<TrainOptimizer> optimizer_, local_optimizer_;
  torch::Device device_;
  std::vector<std::int64_t> came_ns_;  // each parameter's gradient, in the last backward
  BackwardHooks hooks_;
  std::int64_t backward_begin_ns_ = 0, backward_end_ns_ = 0;
  std::vector<StepRecord> records_;
  std::vector<StepTimes> synchronized_;
  std::vector<std::vector<double>> in_phase_;
};

}  // namespace

StepBenchResult bench_steps(const ModuleRef& model, const Task& given, const Batch& batch,
                            const TrainerOptions& options, const Group& world,
                            const std::function<void(std::int64_t)>& progress) {
  if (model.pointer() != nullptr && has_sync_norms(*model.pointer()))
    throw UsageError(
        "bench_steps: with SyncBatchNorm no worker can step alone; accepted: a model with another norm");
  if (options.offload)
    throw UsageError("bench_steps: a worker's steps alone keep their state in memory; accepted: no offload");
  const Precision precision = parse_precision(options.precision);
  const torch::Device device = find_device(options.device, Identity::from_environment().local_rank);
  set_arithmetic(device, {options.deterministic, options.tf32});
  for_each_unit(*model.pointer(),
                [&](torch::nn::Module& module) {  // one that was made in parts, part by part
                  apply_precision(precision, module);
                  move_model(module, device, options.channels_last);
                });
  const Task task = in_precision(given, precision, device);
  const Batch there = moved(batch, device, options.channels_last);
  StepBench bench(model, task, there, without_scaling(options), world);
  constexpr Kind kKinds[] = {Kind::synchronized, Kind::alone, Kind::in_phase};
  for (const Kind kind : kKinds) bench.block(kind, kWarmUp);
  const Crowding crowding = bench.predicts() ? bench.measure_crowding() : Crowding();
  bench.start_over();
  std::vector<double> times[std::size(kKinds)];
  for (std::int64_t done = 0; done < options.steps; done += kBlock) {
    const std::int64_t count = std::min(kBlock, options.steps - done);
    for (const Kind kind : kKinds) {
      const std::vector<double> measured = bench.block(kind, count);
      std::vector<double>& to = times[static_cast<std::size_t>(kind)];
      to.insert(to.end(), measured.begin(), measured.end());
    }
    if (progress) progress(done + count);
  }
  for (std::vector<double>& list : times) list = bench.gather(list);
  const auto quantile = [&](Kind kind, double q) {
    return quantile_of_sorted(times[static_cast<std::size_t>(kind)], q);
  };
  StepBenchResult result{.step_ms = quantile(Kind::synchronized, 0.5),
                         .step_ms_p95 = quantile(Kind::synchronized, 0.95),
                         .alone_ms = quantile(Kind::alone, 0.5),
                         .alone_ms_p95 = quantile(Kind::alone, 0.95),
                         .in_phase_ms = quantile(Kind::in_phase, 0.5)};
  std::optional<StepPrediction> predicted;
  if (bench.predicts()) predicted = bench.predict(crowding);
  result.comm_fraction = bench.comm_fraction();
  result.bucket_cap_mb = bench.bucket_cap_mb();
  if (predicted) {
    result.predicted_step_ms = predicted->step_s * 1e3;
    result.predicted_comm_fraction = predicted->comm_fraction();
  }
  return result;
}

}  // namespace lockstep
