// The optimizer of a run, and the scale of its loss: ours, or libtorch's own behind the same calls.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "lockstep/optim/grad_scaler.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/train/trainer.h"

namespace lockstep {

class TrainOptimizer {
 public:
  virtual ~TrainOptimizer() = default;
  virtual void set_lr(double lr) = 0;
  // Waits for the gradients, updates the parameters, ends the step. False: they overflowed, and nothing
  // changed.
  virtual bool step() = 0;
  // Null: the loss is not scaled.
  virtual const GradScaler* scaler() const = 0;
  // What backward runs from.
  torch::Tensor scaled(const torch::Tensor& loss) const {
    return scaler() != nullptr ? scaler()->scale(loss) : loss;
  }
  virtual void zero_grad() = 0;
  // The state as it is now, for rank 0 to write its files into a checkpoint's folder. Collective; on other
  // ranks there is nothing to write.
  using Writer = std::function<void(const std::filesystem::path& folder)>;
  virtual Writer writer(const Group& world) = 0;
  // By rank 0 alone; then share().
  virtual void load(const std::filesystem::path& folder) = 0;
  // Everybody's state becomes what rank 0 has loaded. Collective.
  virtual void share(const Group& world) = 0;
  // That this worker holds for its state, master weights included.
  virtual std::size_t state_bytes() const = 0;
};

std::unique_ptr<TrainOptimizer> make_optimizer(const TrainerOptions& options, Strategy& strategy);
// One of the same kind, with a state of its own, that takes the gradients as they are: step() asks no peer.
std::unique_ptr<TrainOptimizer> make_local_optimizer(const TrainerOptions& options, Strategy& strategy);

}  // namespace lockstep
