// Lanes: the unit in which a run is defined. A run has `lanes × lane_batch` samples a step, whatever the
// number of workers; a worker carries some of the lanes, one after the other.
//
// Which ones follows from the canonical order of sums (docs/algorithms.md). The lanes are the leaves of a
// balanced binary tree; a worker carries a whole subtree, and the workers' partial sums are added up along
// the rest of the same tree. So the result has the same bits for every number of workers:
//
//   8 lanes, 3 workers:   ((0 1) (2 3)) ((4 5) (6 7))     worker 0: 0 1, worker 1: 2 3, worker 2: 4 5 6 7
#pragma once

#include <cstdint>

namespace lockstep {

class LaneBoard;

// Lanes first … first + count - 1. `span` is the size of the subtree, a power of two, of which the lanes
// beyond the run's last one do not exist; `count` may be zero.
struct LaneRange {
  int first = 0;
  int count = 0;
  int span = 1;
  bool operator==(const LaneRange&) const = default;
};

// The lanes that `worker` of `workers` carries. Any 1 <= workers <= lanes works; when `lanes` is no power
// of two a worker may get none. Throws UsageError naming the accepted numbers.
LaneRange lanes_of(int worker, int workers, int lanes);

// One lane's part in one step: what its random streams, its weight in the mean and the end of the step
// depend on. The mean of a step is Σ weight·gradient / total_weight over all lanes of all workers.
struct LaneInfo {
  std::uint64_t seed = 0;
  std::int64_t step = 0;  // of the run, counted from 0
  int index = 0;          // among all lanes
  double weight = 1;      // 1 everywhere when all lanes carry equally much; 0: the lane counts for nothing
  double total_weight = 1;
  bool first = true;  // of this worker's lanes in this step
  bool last = true;   // then the gradients leave during its backward
  // Among this worker's lanes in this step, from 0: those before it that were never begun are then known to
  // have been left out. Where lanes behind the first leave it at 0 they follow each other without a gap.
  int position = 0;
  // A hash of what says which examples each lane of the run gets (a loader's seed, lanes, lane_batch, …):
  // ranks whose differ are told so when they exchange. 0: not known.
  std::uint64_t draw = 0;
  // Of the group whose strategies hear of the loop that it is in (a loader's); null: none hears of it.
  const LaneBoard* board = nullptr;
};

}  // namespace lockstep
