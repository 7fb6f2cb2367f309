// What a worker is to do: the request that the parent (or the command line under a launcher) made, completed
// by the checkpoint that it resumes from. Every rank has the same plan.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "cli/data_record.h"
#include "cli/train_options.h"
#include "lockstep/comm/group.h"
#include "report/run_display.h"
#include "report/run_folder.h"

namespace lockstep::cli {

struct TrainPlan {
  TrainOptions options;  // complete: workers, lanes and out too
  FolderUse folder_use = FolderUse::fresh;
  std::filesystem::path checkpoint;  // to go on from; empty: from the start
  std::filesystem::path init;        // a checkpoint whose weights a new run begins with; empty: fresh ones
  DataRecord data;                   // the checkpoint's; without a path when the user says where the data is
  std::int64_t first_step = 0;       // steps done before
  std::optional<double> best_accuracy;
  std::string report_to;  // where the parent listens; empty: rank 0 shows progress itself
  Show show = Show::text;
};

// Rank 0 makes it and gives it to everybody: only its machine needs the checkpoint. Collective; throws
// UsageError on every rank. A checkpoint is verified here, which may take long.
TrainPlan make_train_plan(const nlohmann::ordered_json& request, const Group& world);

inline constexpr int kStateFormat = 1;  // of state.json

// state.json of a checkpoint. Throws UsageError when it is none of ours, or of another format.
nlohmann::ordered_json read_state(const std::filesystem::path& checkpoint);
// The options of the run that wrote it.
TrainOptions options_of_state(const nlohmann::ordered_json& state, const std::filesystem::path& checkpoint);

// The command that goes on with this run.
std::string resume_command(const TrainOptions& options);
// The command for a new run like this one, from the weights of `checkpoint`, at a tenth of the rate.
std::string calmer_command(const TrainOptions& options, const std::filesystem::path& checkpoint);

}  // namespace lockstep::cli
