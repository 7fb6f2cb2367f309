// The optimizer of a run: ours, or libtorch's own behind the same four calls.
#pragma once

#include <filesystem>
#include <memory>

#include "cli/train_options.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep::cli {

class TrainOptimizer {
 public:
  virtual ~TrainOptimizer() = default;
  virtual void set_lr(double lr) = 0;
  // Waits for the gradients, updates the parameters, ends the step.
  virtual void step() = 0;
  virtual void zero_grad() = 0;
  // Its files in a checkpoint's folder.
  virtual void save(const std::filesystem::path& folder) = 0;
  virtual void load(const std::filesystem::path& folder) = 0;
  // Everybody's state becomes rank 0's. Collective.
  virtual void share(const Group& world) = 0;
  // Bytes that it remembers for one byte of parameters.
  virtual double state_ratio() const = 0;
};

std::unique_ptr<TrainOptimizer> make_optimizer(const TrainOptions& options, DataParallel& ddp);
// One of the same kind, with a state of its own, that takes the gradients as they are: step() asks no peer.
std::unique_ptr<TrainOptimizer> make_local_optimizer(const TrainOptions& options, DataParallel& ddp);

}  // namespace lockstep::cli
