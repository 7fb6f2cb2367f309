// What a worker is to do: the request that the parent (or the command line under a launcher) made, completed
// by the checkpoint that it resumes from. Every rank has the same plan.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lockstep/comm/group.h"
#include "recipe/train_options.h"
#include "report/run_display.h"
#include "report/run_folder.h"
#include "train/run_plan.h"

namespace lockstep::cli {

struct TrainPlan {
  TrainOptions options;  // complete: workers, lanes and out too
  FolderUse folder_use = FolderUse::fresh;
  std::filesystem::path checkpoint;  // to go on from; empty: from the start
  std::filesystem::path init;        // a checkpoint whose weights a new run begins with; empty: fresh ones
  DataRecord data;                   // the checkpoint's; without a path when the user says where the data is
  std::int64_t first_step = 0;       // steps done before
  std::optional<double> best_accuracy;
  std::int64_t workers_before = 0;  // of the checkpoint; 0: there is none
  std::string sums = "canonical";   // the order of its sums (train/exchange.h)
  std::string report_to;            // where the parent listens; empty: rank 0 shows progress itself
  Show show = Show::text;
};

// Rank 0 makes it and gives it to everybody: only its machine needs the checkpoint. Collective; throws
// UsageError on every rank. A checkpoint is verified here, which may take long.
TrainPlan make_train_plan(const nlohmann::ordered_json& request, const Group& world);

// The options of the run that wrote it.
TrainOptions options_of_state(const nlohmann::ordered_json& state, const std::filesystem::path& checkpoint);

// The same for the trainer, with where the run's data lies; the sink is left to the caller.
std::unique_ptr<RunPlan> run_plan(const TrainPlan& plan, const TrainOptions& located);

}  // namespace lockstep::cli
