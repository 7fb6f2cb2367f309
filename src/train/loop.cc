#include "train/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/option_name.h"
#include "base/wire_bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/clip.h"
#include "train/exchange.h"
#include "train/recorder.h"
#include "train/stop_watch.h"

namespace lockstep {
namespace {

// What the workers tell of a lane: its weight, loss and number, and |gradient|² where that is measured.
constexpr std::size_t kPerLane = 4;

// What the loss sees of a lane.
Batch batch_of(const Lane& lane) {
  Batch batch = lane;
  if (lane.weights.defined()) batch.more.insert_or_assign("weights", lane.weights);
  return batch;
}

ScheduleOptions schedule_of(const TrainerOptions& options, const Loader& loader) {
  ScheduleOptions schedule = options.schedule;
  if (options.warmup_epochs > 0)
    schedule.warmup_steps =
        std::llround(options.warmup_epochs * static_cast<double>(loader.steps_per_epoch()));
  if (schedule.warmup_steps > loader.steps())
    throw UsageError(fmt::format(
        "{} is longer than the run of {} steps; accepted: {} steps at most",
        options.warmup_epochs > 0
            ? fmt::format("--warmup-epochs {} ({} steps)", options.warmup_epochs, schedule.warmup_steps)
            : fmt::format("--warmup-steps {}", schedule.warmup_steps),
        loader.steps(), loader.steps()));
  return schedule;
}

}  // namespace

StepLoop::StepLoop(const TrainerOptions& options, const Task& task, Strategy& strategy,
                   TrainOptimizer& optimizer, Loader& loader, FiniteWatch& finite, DeviceFeed* feed)
    : options_(options),
      task_(task),
      strategy_(strategy),
      optimizer_(optimizer),
      loader_(loader),
      finite_(finite),
      feed_(feed),
      noise_(options.measure),
      schedule_(schedule_of(options, loader)) {
  const int workers = strategy.group().size();
  for (int rank = 0; rank < workers; ++rank)
    most_lanes_ = std::max(most_lanes_, lanes_of(rank, workers, options.lanes).count);
  if (!options.cuda_graph) return;
  if (most_lanes_ > 1)
    throw UsageError(fmt::format(
        "{}: {} lanes on {} workers are {} on one of them, and what is recorded is one; accepted: {} lanes",
        option_text("cuda_graph", "true"), options.lanes, workers, most_lanes_, workers));
  captured_.emplace(strategy.module(), [this](const std::vector<torch::Tensor>& inputs) {
    Batch batch{.data = inputs[0], .target = inputs[1]};
    for (std::size_t i = 0; i < captured_names_.size(); ++i)
      batch.more.emplace(captured_names_[i], inputs[i + 2]);
    return task_.loss(task_.forward(batch), batch);
  });
}

torch::Tensor StepLoop::loss_of(const Batch& batch) {
  if (!captured_) return task_.loss(task_.forward(batch), batch);
  std::vector<torch::Tensor> inputs{batch.data, batch.target};
  std::vector<std::string> names;
  for (const auto& [name, tensor] : batch.more) {
    names.push_back(name);
    inputs.push_back(tensor);
  }
  if (captured_->replays() == 0) captured_names_ = names;
  if (names != captured_names_) return task_.loss(task_.forward(batch), batch);
  return (*captured_)(inputs);
}

Step* StepLoop::next() {
  now_ = {};
  now_.record.begin_ns = now_ns();
  const std::int64_t waited = loader_.waited_ns();
  Step* const step = loader_.next();
  now_.record.data_wait_ns = loader_.waited_ns() - waited;
  if (step != nullptr) add_span("data", now_.record.begin_ns, now_ns(), step->number);
  return step;
}

void StepLoop::add_span(const char* name, std::int64_t begin, std::int64_t end, std::int64_t step, int lane) {
  if (options_.trace_steps == 0) return;
  now_.spans.push_back({.name = name,
                        .track = kComputeTrack,
                        .begin_ns = begin,
                        .end_ns = end,
                        .details = {{"step", step + 1}}});
  if (lane >= 0) now_.spans.back().details.emplace_back("lane", lane);
}

StepResult StepLoop::train(Step& step) {
  StepRecord& record = now_.record;
  const std::uint64_t sent_before = lockstep::wire_bytes();
  record.lr = lr_at(schedule_, step.number, loader_.steps());
  optimizer_.set_lr(record.lr);
  std::vector<double> losses;  // kPerLane numbers, lane by lane
  finite_.begin_step();
  lane_losses_.begin_step();
  for (Lane& lane : step) {
    const auto scope = strategy_.lane(lane);
    const std::int64_t begin = now_ns();
    if (feed_ != nullptr) feed_->arrive(lane);
    const Batch batch = batch_of(lane);
    const torch::Tensor loss = loss_of(batch);
    lane_losses_.add(loss);
    const std::int64_t middle = now_.backward_begin_ns = now_ns();
    optimizer_.scaled(loss).backward();
    add_span("forward", begin, middle, step.number, lane.index);
    add_span("backward", middle, now_ns(), step.number, lane.index);
    losses.insert(losses.end(), {lane.weight, 0, static_cast<double>(lane.index), 0});
  }
  strategy_.synchronize();
  take_buckets(step.number);
  noise_.take(strategy_);
  const std::vector<double> values = lane_losses_.take();
  for (std::size_t i = 0; i < values.size(); ++i) {
    losses[i * kPerLane + 1] = values[i];
    losses[i * kPerLane + 3] = noise_.lane_square(i);
  }
  record.loss = share_losses(std::move(losses));
  const std::int64_t synchronized = now_ns();
  if (options_.clip_norm > 0) record.further = {std::numeric_limits<double>::quiet_NaN()};
  const GradScaler* const scaler = optimizer_.scaler();
  const double scale = scaler != nullptr ? scaler->scale() : 1;
  const bool updated = finite_.accept(record.loss, bad_lanes_);
  if (updated) {
    if (scaler == nullptr || !strategy_.overflowed()) clip(scale);
    step_and_share(step.number);
  } else {
    // The weights stay as they were. Where gradients overflowed the exchange knows.
    if (const auto& leave_out = strategy_.exchange().leave_out; leave_out && !strategy_.overflowed())
      leave_out();
    strategy_.end_step();
  }
  add_span("optimizer", synchronized, now_ns(), step.number);
  record.step = step.number + 1;
  record.epoch = step.epoch + 1;
  record.samples = step.samples;
  if (scaler != nullptr) record.further.insert(record.further.end(), {scale, record.skipped ? 1.0 : 0.0});
  if (const auto& figures = strategy_.exchange().figures) {
    const ExchangeFigures of_step = figures();
    record.further.insert(record.further.end(), {of_step.dense_bytes, of_step.sent_bytes, of_step.error,
                                                 static_cast<double>(of_step.history.size())});
  }
  if (noise_.on()) record.noise = noise_.finish(step.samples);
  record.end_ns = now_ns();
  const std::uint64_t sent = lockstep::wire_bytes() - sent_before;
  if (updated && !record.skipped) wire_bytes_ = std::min(sent, wire_bytes_.value_or(sent));
  return std::move(now_);
}

void StepLoop::clip(double scale) {
  if (options_.clip_norm > 0)
    now_.record.further = {clip_grad_norm_(strategy_, options_.clip_norm * scale) / scale};
  if (options_.clip_value > 0) clip_grad_value_(strategy_, options_.clip_value * scale);
}

// What became of the step's buckets, before the next step begins.
void StepLoop::take_buckets(std::int64_t step) {
  const ExchangeLog& log = strategy_.last_exchange();
  now_.buckets = take_exchange(log, now_.record);
  add_buckets("bucket", now_.buckets, step);
  if (!now_.buckets.empty()) add_span("wait for buckets", log.wait_begin_ns, log.wait_end_ns, step);
}

// The optimizer's step, and how the workers' updates came together, where each has a part of them.
void StepLoop::step_and_share(std::int64_t step) {
  if (saver_ != nullptr) saver_->hold_update();
  if (!optimizer_.step()) {
    now_.record.skipped = true;
    return;
  }
  const ExchangeLog& log = strategy_.last_exchange();
  const std::vector<BucketTimes> shared = take_shared(log, now_.record);
  add_buckets("parameters of bucket", shared, step);
  if (!shared.empty()) add_span("wait for parameters", log.share_begin_ns, log.share_end_ns, step);
}

void StepLoop::add_buckets(const char* name, const std::vector<BucketTimes>& buckets, std::int64_t step) {
  if (options_.trace_steps == 0) return;
  for (const BucketTimes& b : buckets)
    now_.spans.push_back({.name = fmt::format("{} {}", name, b.bucket),
                          .track = kCommunicationTrack,
                          .begin_ns = b.start_ns,
                          .end_ns = b.end_ns,
                          .details = {{"step", step + 1}, {"bytes", static_cast<std::int64_t>(b.bytes)}}});
}

// The step's loss over all lanes of all workers, added in the order of lanes: the same bits everywhere. Also
// how the workers agree to stop.
double StepLoop::share_losses(std::vector<double> mine) {
  mine.resize(kPerLane *
              static_cast<std::size_t>(most_lanes_));  // a weight of 0: no lane, or one of no weight
  const std::size_t lanes_end = mine.size();
  mine.push_back(static_cast<double>(noted_stop()));
  mine.push_back(saver_ != nullptr ? saver_->standing() : 0);
  const Group& world = strategy_.group();
  std::vector<double> all(mine.size() * static_cast<std::size_t>(world.size()));
  world.all_gather(buffer(mine), buffer(all));
  bad_lanes_.clear();
  standings_.clear();
  double loss = 0, weight = 0;
  for (std::size_t at = 0; at < all.size(); at += mine.size()) {
    for (std::size_t i = at; i < at + lanes_end; i += kPerLane) {
      if (all[i] == 0) continue;
      if (!std::isfinite(all[i + 1])) bad_lanes_.push_back(static_cast<int>(all[i + 2]));
      loss += all[i] * all[i + 1];
      weight += all[i];
      noise_.add(all[i], all[i + 3]);
    }
    stop_ = std::max(stop_, static_cast<int>(all[at + lanes_end]));
    standings_.push_back(all[at + lanes_end + 1]);
  }
  if (weight == 0) return 0;
  // Which sign a NaN has is the processor's choice.
  const double mean = loss / weight;
  return std::isnan(mean) ? std::numeric_limits<double>::quiet_NaN() : mean;
}

}  // namespace lockstep
