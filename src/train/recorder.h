// Keeps what happened in a run: figures, files, events for whoever shows progress. On ranks other than 0 it
// keeps only the spans of the trace.
#pragma once

#include <deque>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/group.h"
#include "lockstep/report/trace.h"
#include "report/run_folder.h"
#include "report/step_figures.h"
#include "report/timeline.h"
#include "train/evaluate.h"
#include "train/run_plan.h"

namespace lockstep {

// Tracks of the trace.
inline constexpr int kComputeTrack = 0;
inline constexpr int kCommunicationTrack = 1;

// Of the whole run, what was done before included.
struct RunFacts {
  std::int64_t steps = 0;
  std::int64_t steps_per_epoch = 0;
  std::optional<double> loss_floor = {};  // of its data
};

// The run's folder can't be written, between two meetings of the ranks: rank 0 alone knows.
class RunFolderError : public SystemError {
 public:
  using SystemError::SystemError;
};

class TrainRecorder {
 public:
  // Rank 0 opens the run's folder.
  TrainRecorder(const RunPlan& plan, const Task& task, Group world, RunFacts facts);

  void add_step(const StepRecord& step, std::vector<BucketTimes> buckets, std::vector<TraceSpan> spans);
  // Writes the epoch's row and the page as it is so far. Collective.
  void end_epoch(std::int64_t epoch, const std::optional<Evaluation>& evaluation);
  // The figures of the run and all remaining files. Collective: rank 0 gets everybody's part of the trace.
  // `rest` is what only the caller knows of the summary. Gives the summary on rank 0.
  nlohmann::ordered_json finish(const nlohmann::ordered_json& rest);

  std::int64_t steps() const { return static_cast<std::int64_t>(steps_.size()); }

 private:
  bool leads() const { return world_.rank() == 0; }
  void report_step(const StepRecord& step);
  // By rank 0 alone.
  void write_epoch(std::span<const StepRecord> of_epoch, std::int64_t epoch,
                   const std::optional<Evaluation>& evaluation);
  nlohmann::ordered_json write_summary(const nlohmann::ordered_json& rest,
                                       const std::vector<std::string>& trace_parts) const;
  void add_losses(nlohmann::ordered_json& summary) const;
  std::vector<std::string> gather_trace() const;
  std::vector<TimelineRow> timeline() const;
  void write_page() const;

  const RunPlan& plan_;
  const Task& task_;
  Group world_;
  RunFacts facts_;
  std::int64_t origin_ns_;
  std::int64_t last_report_ns_ = 0;
  std::optional<RunFolder> folder_;
  std::vector<StepRecord> steps_;
  NoiseScale noise_;             // of the whole run, where it is measured
  std::size_t epoch_begin_ = 0;  // index of the epoch's first step
  BucketLatencies latencies_;
  std::vector<TraceSpan> first_spans_;
  std::deque<std::vector<TraceSpan>> last_spans_;  // of the last steps, one entry each
  std::vector<TraceSpan> shown_spans_;             // of the step that the page's timeline shows
};

}  // namespace lockstep
