// What the workers of a run keep on disk, together.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/train/trainer.h"
#include "train/optimizer.h"

namespace lockstep {

// Of the optimizer's state, or of parameters.
struct DiskPart {
  OffloadFigures own;                      // of this worker
  std::vector<std::int64_t> bytes;         // by worker
  double read_rate = 0;                    // of the slowest worker
  double write_rate = 0;                   // likewise
  double predicted_ms = 0;                 // of a step, on the worker for which it is most
  std::optional<double> measured_ms = {};  // likewise; nullopt: there was no step
};

struct DiskUse {
  std::optional<DiskPart> state, params;
};

// Throws UsageError on all workers where one has no such folder. Collective where something is to be on disk.
void check_folders(const TrainerOptions& options, const Group& world);

// `lanes`: that this worker has in a step. Collective.
DiskUse disk_use(const TrainOptimizer& optimizer, const Strategy& strategy, int lanes);

// "offload: 1.5 GiB of optimizer state on disk in /scratch (io_uring, direct), 2.10 GB/s read, …"
std::string describe(const DiskUse& use);
// Of the summary.
nlohmann::ordered_json to_json(const DiskUse& use);

}  // namespace lockstep
