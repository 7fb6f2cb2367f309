// One run of the trainer, from its folder to its summary, on every worker.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lockstep/data/loader.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/train/captured_loss.h"
#include "train/checkpoint.h"
#include "train/device.h"
#include "train/device_feed.h"
#include "train/evaluate.h"
#include "train/finite.h"
#include "train/loop.h"
#include "train/optimizer.h"
#include "train/profiler.h"
#include "train/recorder.h"
#include "train/run_arithmetic.h"
#include "train/run_plan.h"
#include "train/saver.h"

namespace lockstep {

// Of all checkpoints that the run has written.
struct SaveFigures {
  std::int64_t count = 0;
  double pause_ms = 0;  // the longest
  double write_ms = 0;  // likewise
  std::uint64_t copied_bytes = 0;
};

class TrainRun {
 public:
  // Takes the checkpoint's weights and state, and checks all that can be checked before the folder changes.
  // Collective; throws Error.
  TrainRun(std::unique_ptr<RunPlan> plan, std::shared_ptr<torch::nn::Module> model, Task task, Group world);

  // Trains to the end of the plan, or to the step after SIGINT, SIGTERM, SIGHUP or SIGQUIT, at which all
  // ranks stop together and a checkpoint is written. Collective; throws Error.
  TrainerResult run();

 private:
  bool leads() const { return world_.rank() == 0; }
  GpuArithmetic arithmetic() const { return {options_.deterministic, options_.tf32}; }
  bool on_disk() const;
  int own_lanes() const;                                 // of this worker in a step
  void tell(const nlohmann::ordered_json& event) const;  // on rank 0
  std::unique_ptr<Strategy> begin_strategy() const;      // of the right data, with the plan's weights
  std::unique_ptr<TrainOptimizer> begin_optimizer();     // collective
  bool summarised() const;
  void evaluate_now();
  void nothing_left() const;
  void announce() const;
  void train_step(Step& step);
  void end_epoch(const Step& step);
  void checkpoint();
  void checkpoint_is_there(const SaveReport& report);
  void stop_early();
  nlohmann::ordered_json finish();
  std::string newest_checkpoint() const;
  [[noreturn]] void stop_not_finite(const std::string& found);
  TrainerResult result() const;
  std::string hash_parameters() const;  // collective

  std::unique_ptr<RunPlan> plan_;
  const TrainerOptions& options_;
  Group world_;
  torch::Device device_;
  std::unique_ptr<RecordingStream> recording_;  // of a run whose steps are recorded: all of it is there
  Task task_;
  DataRecord data_record_;
  std::int64_t rss_before_;  // before the model was made
  std::shared_ptr<torch::nn::Module> model_;
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<TrainOptimizer> optimizer_;
  std::optional<DeviceFeed> feed_;  // where lanes don't stay as they are made
  Loader loader_;
  FiniteWatch finite_;
  StepLoop loop_;
  StepProfiler profiler_;
  std::optional<TrainRecorder> recorder_;  // once there is something to record
  TrainState state_;
  std::int64_t saved_step_ = -1;
  std::filesystem::path checkpoint_;
  std::optional<Evaluation> evaluation_;
  std::optional<double> final_loss_;
  std::string about_exchange_;  // what is to be told of what it remembers
  RunArithmetic facts_;
  int stopped_by_ = 0;
  SaveFigures saves_;
  std::optional<SliceOwners> owners_;
  std::optional<Saver> saver_;  // last: its thread reads what the others hold
};

}  // namespace lockstep
