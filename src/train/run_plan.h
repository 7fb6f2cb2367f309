// What a run is to do: its options, completed by the checkpoint that it goes on from. Every rank has the
// same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lockstep/comm/group.h"
#include "lockstep/train/trainer.h"
#include "report/run_folder.h"
#include "train/data_record.h"

namespace lockstep {

// Told what happens: for files, progress and whoever started the run (report/run_display.h has the list).
using EventSink = std::function<void(const nlohmann::ordered_json&)>;

struct RunPlan {
  TrainerOptions options;              // complete: lanes, lengths and out too
  nlohmann::ordered_json recipe = {};  // the options as config.json and checkpoints have them
  FolderUse folder_use = FolderUse::fresh;
  std::filesystem::path checkpoint = {};  // to go on from; empty: from the start
  std::string resumed = {};               // what the user called that
  std::filesystem::path init = {};        // a checkpoint to begin with; empty: fresh weights
  std::string data_path = {};             // where the run's data lies; empty: made, not read
  DataRecord data = {};                   // the checkpoint's
  std::int64_t first_step = 0;            // steps done before
  std::optional<double> best_accuracy = {};
  std::string remark = {};            // to be told before the first step, if anything
  std::int64_t resident_before = -1;  // memory before the model was made; -1: not known
  EventSink sink = {};                // called on rank 0
  // How a person goes on with the run, and with a smaller learning rate from a checkpoint.
  std::string how_to_resume = {};
  std::function<std::string(const std::string& checkpoint)> how_to_calm = {};
};

// How often the launcher has started this job's workers again after a failure.
int restarts();

// What is to be told of a run that goes on with another number of workers than it had (0: not known): `what`,
// an option, makes its bits depend on that; empty: none does.
std::string remark_on_workers(const std::string& what, std::int64_t before, std::int64_t now);

// The plan of a program's run: rank 0 looks at the folder. Collective; throws UsageError on every rank.
RunPlan plan_program(TrainerOptions options, const Group& world);

}  // namespace lockstep
