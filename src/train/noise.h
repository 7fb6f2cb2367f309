// What --measure noise takes of a step (lockstep/report/noise_scale.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/strategy.h"
#include "lockstep/report/noise_scale.h"

namespace lockstep {

// |gradient|² of the step, the mean over all lanes, after synchronize(): in f64, in the order of the
// parameters, the same on every worker and for every number of them. Whole gradients are read once; where
// each worker has parts of them (Sharded) they are gathered for it, as clipping does. Collective there.
double mean_square(Strategy& strategy);

// What the workers tell each other of their lanes, and what it comes to.
class NoiseMeter {
 public:
  // What TrainerOptions::measure says: none, or noise.
  explicit NoiseMeter(const std::string& measure) : on_(measure == "noise") {}
  bool on() const { return on_; }

  // The step's gradients are means. Collective.
  void take(Strategy& strategy);
  // Of this worker's lane `position`; 0 where nothing is measured.
  double lane_square(std::size_t position) const { return position < own_.size() ? own_[position] : 0; }
  // A lane of any worker, in the order of lanes.
  void add(double weight, double square) {
    if (on_) lanes_.push_back({weight, square});
  }
  // What the step tells; forgets its lanes.
  std::optional<NoiseSample> finish(std::int64_t samples);

 private:
  bool on_;
  double mean_square_ = 0;
  std::vector<double> own_;
  std::vector<LaneSquare> lanes_;
};

}  // namespace lockstep
