// Every collective, type, operation and kind of memory on one group on a GPU, against the plain reference,
// bit by bit. Each rank runs it; inputs follow from (rank, index). Results are collected on the GPU and
// fetched many at a time: where processes take turns, waiting for the GPU is what takes long.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep::testing {

struct DeviceGridOptions {
  std::vector<std::size_t> counts = {0, 1, 17, 4099};
  std::vector<DType> dtypes = {std::begin(kAllDTypes), std::end(kAllDTypes)};
  std::vector<ReduceOp> ops = {std::begin(kAllReduceOps), std::end(kAllReduceOps)};  // sum, for what is none
  std::vector<Collective> collectives = {};  // and messages, where this is empty: all
};

struct DeviceGridResult {
  std::size_t checks = 0;
  std::string problem;  // the first; empty: none
};

DeviceGridResult run_device_grid(const Group& group, const DeviceGridOptions& options = {});

}  // namespace lockstep::testing
