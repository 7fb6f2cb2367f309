// One step after the other: lanes, exchange, update; what is measured of it, and when all workers stop.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/loader.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/report/trace.h"
#include "lockstep/train/captured_loss.h"
#include "lockstep/train/trainer.h"
#include "report/step_figures.h"
#include "train/device_feed.h"
#include "train/finite.h"
#include "train/lane_losses.h"
#include "train/noise.h"
#include "train/optimizer.h"
#include "train/saver.h"

namespace lockstep {

// What became of one step.
struct StepResult {
  StepRecord record;
  std::vector<BucketTimes> buckets;
  std::vector<TraceSpan> spans;
  std::int64_t backward_begin_ns = 0;  // of the last lane
};

class StepLoop {
 public:
  // All of them outlive it. `feed`: what the loader's lanes come through; null: as they are. Throws
  // UsageError for a warm-up that is longer than the run.
  StepLoop(const TrainerOptions& options, const Task& task, Strategy& strategy, TrainOptimizer& optimizer,
           Loader& loader, FiniteWatch& finite, DeviceFeed* feed = nullptr);

  // Its standing goes with the losses, and updates wait for it. Outlives this.
  void set_saver(Saver* saver) { saver_ = saver; }
  // What the workers' savers said with the last losses.
  const std::vector<double>& standings() const { return standings_; }

  // Null at the end.
  Step* next();
  // Collective. What the finite watch has to say is left to the caller.
  StepResult train(Step& step);
  // The signal at which all workers stop after the last step; 0: none.
  int stop() const { return stop_; }
  // Sent by this process in the step that sent least, of those that were not skipped: in some of them links
  // are measured, too. Nothing, on every worker, where all of them were.
  std::optional<std::uint64_t> wire_bytes() const { return wire_bytes_; }

 private:
  torch::Tensor loss_of(const Batch& batch);
  void add_span(const char* name, std::int64_t begin, std::int64_t end, std::int64_t step, int lane = -1);
  void take_buckets(std::int64_t step);
  void step_and_share(std::int64_t step);
  void add_buckets(const char* name, const std::vector<BucketTimes>& buckets, std::int64_t step);
  double share_losses(std::vector<double> mine);
  void clip(double scale);  // of gradients that are so many times too large

  const TrainerOptions& options_;
  const Task& task_;
  Strategy& strategy_;
  TrainOptimizer& optimizer_;
  Loader& loader_;
  FiniteWatch& finite_;
  DeviceFeed* feed_;
  NoiseMeter noise_;
  ScheduleOptions schedule_;    // with the warm-up in steps
  int most_lanes_ = 0;          // that any worker carries
  std::vector<int> bad_lanes_;  // whose loss was not finite in the last step
  int stop_ = 0;
  LaneLosses lane_losses_;
  std::optional<CapturedLoss> captured_;     // TrainerOptions::cuda_graph
  std::vector<std::string> captured_names_;  // of Batch::more
  Saver* saver_ = nullptr;
  std::vector<double> standings_;
  std::optional<std::uint64_t> wire_bytes_;
  StepResult now_;
};

}  // namespace lockstep
