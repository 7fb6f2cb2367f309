// The optimizer of a run, and the scale of its loss: ours, or libtorch's own behind the same calls.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "lockstep/offload/offload.h"
#include "lockstep/optim/grad_scaler.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/train/trainer.h"
#include "train/saved_state.h"

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
  // Adds what this worker has of the state: to be saved as it is now. Collective.
  virtual void save(SavedState& state, const SliceOwners& owners, const Group& world) = 0;
  // Every worker takes its part of what the checkpoint of rank 0 has. Collective; throws Error on every rank.
  virtual void load(const std::filesystem::path& checkpoint, const SliceOwners& owners,
                    const Group& world) = 0;
  // That this worker holds for its state, master weights included.
  virtual std::size_t state_bytes() const = 0;
  // What it keeps on disk; nullopt: nothing.
  virtual std::optional<OffloadFigures> offload() const = 0;
};

std::unique_ptr<TrainOptimizer> make_optimizer(const TrainerOptions& options, Strategy& strategy);
// One of the same kind, with a state of its own, that takes the gradients as they are: step() asks no peer.
std::unique_ptr<TrainOptimizer> make_local_optimizer(const TrainerOptions& options, Strategy& strategy);

}  // namespace lockstep
