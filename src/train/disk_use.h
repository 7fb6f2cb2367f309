// What the workers of a run keep on disk, together.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "train/optimizer.h"

namespace lockstep {

struct DiskUse {
  OffloadFigures own;                      // of this worker
  std::vector<std::int64_t> bytes;         // by worker
  double read_rate = 0;                    // of the slowest worker
  double write_rate = 0;                   // likewise
  double predicted_ms = 0;                 // of a step, on the worker for which it is most
  std::optional<double> measured_ms = {};  // likewise; nullopt: there was no step
};

// Collective.
DiskUse disk_use(const TrainOptimizer& optimizer, const Group& world);

// "offload: 1.5 GiB of optimizer state on disk in /scratch (io_uring, direct), 2.10 GB/s read, …"
std::string describe(const DiskUse& use);
// Of the summary.
nlohmann::ordered_json to_json(const DiskUse& use);

}  // namespace lockstep
