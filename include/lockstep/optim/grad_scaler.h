// Dynamic loss scaling: gradients that f16 has no small enough numbers for are made larger by a factor on the
// loss, and divided by it where the optimizer computes in f32.
//
//   lockstep::GradScaler scaler(optimizer);       // beside the optimizer, on every rank
//   scaler.scale(loss).backward();
//   scaler.step();                                // in place of optimizer.step(), and there is no update()
//
// The scale begins at 65536, doubles after every 2000 steps without overflow, and halves at each overflow. A
// step overflows where any gradient, of any worker and any lane, is not finite once it is reduced. That is
// looked at on the way (each worker looks at its share of each bucket, right after it was reduced), and what
// was found travels with the counts behind the buckets: all workers know it, under every strategy, without a
// round or a pass more. Such a step is skipped: parameters, the optimizer's state and its counts of steps,
// and buffers such as batch norm's are as the step found them, bit for bit.
//
// A scale that is a power of two changes no bit of a gradient that f32 can hold, so training in f32 or bf16
// under a scaler gives the bits that it gives without, but for clipping by norm, whose 1e-6 is not scaled;
// there it is of no use, but costs little.
//
// Clipping comes before step() and sees scaled gradients: clip_grad_norm_(ddp, max_norm * scaler.scale()),
// and the norm that it returns is as many times too large; clip_grad_value_ likewise. A program's checkpoint
// has state_dict() beside the optimizer's.
//
// optimizer.step() itself would take gradients that are so many times too large, and notices nothing: behind
// a scaled loss call the scaler's.
//
// Gradients that are infinite at any scale come from the model: after `most_skipped` steps in a row step()
// throws, on every rank, rather than to skip for ever. bf16 has the range of f32 and needs no scaler.
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "lockstep/optim/optimizer.h"

namespace lockstep {

// PyTorch's defaults.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;             // more than 1
  double backoff_factor = 0.5;          // between 0 and 1
  std::int64_t growth_interval = 2000;  // steps
  std::int64_t most_skipped = 40;       // in a row
};

class GradScaler {
 public:
  // The optimizer outlives it. Throws UsageError that names the option.
  explicit GradScaler(Optimizer& optimizer, GradScalerOptions options = {});
  ~GradScaler();
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  double scale() const { return scale_; }
  // loss × scale, in f32 where the loss is of 16 bits.
  torch::Tensor scale(const torch::Tensor& loss) const;

  // Waits for the gradients; then the optimizer's step, or nothing: false. Collective as Optimizer::step.
  // Throws SystemError when the last `most_skipped` were all skipped.
  bool step();

  std::int64_t skipped() const { return skipped_; }  // steps so far

  // "scale", "growth_tracker" (steps since it was changed), "skipped", "skipped_in_a_row": the same on every
  // rank. A run that goes on with them has the bits of one that was not stopped. load throws UsageError that
  // names the entry.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  Optimizer& optimizer_;
  GradScalerOptions options_;
  double scale_;
  std::int64_t growth_tracker_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t skipped_in_a_row_ = 0;
};

}  // namespace lockstep
