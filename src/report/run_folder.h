// The folder of one run: what is in it, and how it grows. Written by rank 0 alone.
//
//   config.json    every option           summary.json  the figures at the end
//   steps.csv      one row a step         epochs.csv    one row an epoch
//   evaluations.csv  one row an evaluation, of which an epoch that was done in parts may have several
//   noise.csv      one row a step, where the noise of gradients is measured
//   buckets.csv    one row a bucket and step; ready, start and end in ms since the run began
//   latency.csv    p50, p95, p99 of every bucket's exchange
//   trace.json     for ui.perfetto.dev    index.html    the page with the plots
//   checkpoints/   set-aside/: those from which the run did not go on
//                                         job.txt       which job of the launcher began, or resumed, the run
//   .lock          while the run goes on: who writes
//
// Whole files are replaced by rename; rows are appended and flushed step by step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/output_file.h"
#include "lockstep/report/csv.h"
#include "report/folder_lock.h"
#include "report/step_figures.h"

namespace lockstep {

struct EpochRecord {
  std::int64_t step = 0;        // steps done
  std::int64_t epoch = 0;       // 1 is the first
  double seconds_per_step = 0;  // over the last 20 steps
  StepFigures figures = {};
  std::optional<double> validation_loss = {};
  std::optional<double> accuracy = {};
  double lr = 0;
  std::vector<std::pair<std::string, double>> further = {};  // metrics besides the accuracy
};

// What may be in the folder already.
enum class FolderUse : std::uint8_t { fresh, overwrite, resume };

class RunFolder {
 public:
  // Makes the folder and takes its lock. `fresh`: throws UsageError when there is something in it.
  // `overwrite`: what an earlier run wrote is removed, nothing else. `resume`: rows after `steps_done` go,
  // and checkpoints after it are set aside. What killed processes left half made goes in any case. Throws
  // UsageError that names the process which has the folder.
  // `further`: metrics besides the accuracy, which evaluations.csv has columns for; `further_of_steps`:
  // columns of steps.csv for StepRecord::further.
  RunFolder(const std::filesystem::path& folder, FolderUse use, std::int64_t steps_done,
            const std::vector<std::string>& further = {},
            const std::vector<std::string>& further_of_steps = {});

  // By the job that this process belongs to, perhaps before its launcher started the workers again. Throws
  // SystemError when that can't be read.
  static bool begun_by_this_job(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return folder_; }
  static std::filesystem::path checkpoints_of(const std::filesystem::path& folder) {
    return folder / "checkpoints";
  }

  // Names of the checkpoints that were set aside.
  const std::vector<std::string>& set_aside() const { return set_aside_; }
  // Steps of this epoch that an earlier part of the run has done; without their times. None of an epoch that
  // ended.
  std::span<const StepRecord> earlier_steps(std::int64_t epoch) const;

  void add_step(const StepRecord& step, std::span<const BucketTimes> buckets, std::int64_t origin_ns);
  // The noise of the step's gradients, and what it comes to with those before.
  void add_noise(std::int64_t step, const NoiseSample& sample, const NoiseFigures& figures);
  void add_epoch(
      const EpochRecord& epoch);  // instead of the line of an earlier part that ended within the epoch
  void replace(const char* name, std::string_view text) const {
    replace_file(folder_ / name, text, Sync::yes);
  }

 private:
  void read_earlier_steps(std::int64_t steps_done);
  void open_epochs(std::int64_t last_step);  // keeps the lines up to this step
  void open_noise(std::int64_t last_step);

  std::filesystem::path folder_;
  FolderLock lock_;
  std::vector<std::string> set_aside_;
  std::vector<StepRecord> earlier_;  // of the last epoch that was begun
  std::optional<CsvFile> steps_, epochs_, evaluations_, buckets_;
  std::optional<CsvFile> noise_;  // where there is any
};

nlohmann::ordered_json to_json(const EpochRecord& epoch);

}  // namespace lockstep
