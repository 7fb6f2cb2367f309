// Every collective, algorithm, type, operation and memory on one group, against a plain reference. Each rank
// runs it; inputs follow from (rank, index), so every rank can compute what any other gave.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep::testing {

struct GridOptions {
  std::vector<std::size_t> counts = {0, 1, 17, 4096};
  std::vector<DType> dtypes = {std::begin(kAllDTypes), std::end(kAllDTypes)};
  bool every_memory = true;  // false: the kinds of memory take turns
};

struct GridResult {
  std::size_t checks = 0;  // results compared
  std::string problem;     // the first, empty when there is none
};

GridResult run_grid(const Group& group, const GridOptions& options);

}  // namespace lockstep::testing
