// Optimizers for large batches: each parameter's step is as long as its weights allow. LARS and LAMB scale
// the learning rate of every parameter ("layer") by a trust ratio of two norms over the whole of it.
//
//   lockstep::LARS optimizer(ddp, {.lr = 2.0, .weight_decay = 1e-4});
//   lockstep::LAMB optimizer(zero1, {.lr = 2e-3});
//
// Parameters of fewer than two dimensions (biases, the gains of norms) are left out, as is usual: they take
// the plain rate and no weight decay. Others by name:
//
//   optimizer.add_group({.match = [](const std::string& name) { return name.starts_with("embedding"); },
//                        .weight_decay = 0, .adapt = false});
//
// Norms are added up in f64 in fixed blocks of the whole parameter, so they have the same bits on any number
// of workers and threads, and under every strategy. That is one more pass over parameter
// and gradient (LARS), or over parameter and state (LAMB). Where workers have parts of the parameters, one
// all-reduce a step puts the blocks together: about a hundredth of the gradients' bytes, and 8 KiB for each
// block that a border of the parts cuts. Of 16-bit parameters the norms are those of their master
// weights, where there are any, and of the parameters as they are stored, where not. All parameters are on
// one device, the processor or one whose library has kernels for these norms; others are refused.
#pragma once

#include <memory>

#include "lockstep/optim/optimizer.h"

namespace lockstep {

class LayerNorms;
namespace kernel {
struct LayerPart;
struct LayerSums;
}  // namespace kernel

// What both have in common: the norms, and who is left out.
class LayerwiseOptimizer : public Optimizer {
 public:
  ~LayerwiseOptimizer() override;

 protected:
  struct Adaptation {
    double trust_clip = 0;  // the ratio is at most this; 0: without a limit
    bool vectors = false;   // parameters of fewer than two dimensions too
  };
  LayerwiseOptimizer(GradientSource& source, Traits traits, Adaptation adaptation);
  LayerwiseOptimizer(const std::vector<NamedTensor>& parameters, Traits traits, Adaptation adaptation);

  // Writes what the second norm is of, as f64; at most a block of elements. The state may move on to this
  // step: each element is asked for once, before update(). Called by several threads.
  virtual void measure(const kernel::Elements& elements, std::int64_t step, double weight_decay,
                       double* second) const = 0;
  // The same for many slices on a device: both norms' squares, added up there.
  virtual void measure_there(std::span<const kernel::LayerPart> parts, std::int64_t step, double weight_decay,
                             const kernel::LayerSums& to) const = 0;
  // From two norms that are above 0.
  virtual double trust_ratio(double parameter_norm, double second_norm, double weight_decay) const = 0;

 private:
  void check_devices() const;
  void adapt(std::span<Update> updates) final;
  // Has the norms see the blocks of all that is updated (by slot, null where it is not): what is in memory,
  // and what comes there from disk.
  void measure_here(std::span<const Update* const> updated);
  void measure_on_disk(std::span<const Update* const> updated);
  bool measured_on_disk(const Slot& slot) const;
  void measure_block(const Update& update, const kernel::Elements& block, double* parameter,
                     double* second) const;
  // Of parameters on a device, in calls for all that are updated alike.
  void measure_all_there(std::span<const Update> updates, const kernel::LayerSums& to) const;
  bool is_adapted(const Slot& slot) const;

  Adaptation adaptation_;
  std::unique_ptr<LayerNorms> norms_;  // from the first step on
};

// Layer-wise adaptive rate scaling (You, Gitman, Ginsburg: "Large Batch Training of Convolutional Networks",
// 2017, algorithm 1), with w a parameter and g its gradient:
//
//   ratio = trust_coefficient * |w| / (|g| + weight_decay * |w| + eps), and 1 where |w| or |g| is 0
//   momentum_buffer = momentum * momentum_buffer + lr * ratio * (g + weight_decay * w)
//   w = w - momentum_buffer
//
// The rate is inside the momentum, so that a change of it acts on what comes, not on what has gathered.
// What is left out has a ratio of 1 and no weight decay: SGD.
struct LARSOptions {
  double lr = 1;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  double trust_coefficient = 1e-3;  // the paper's eta: how far a step may take a parameter, relative to it
  double eps = 0;
  double trust_clip = 0;  // the ratio is at most this; 0: without a limit
  bool vectors = false;   // parameters of fewer than two dimensions are adapted and decayed too
  MasterWeights master_weights = MasterWeights::none;
  Offload offload = {};
};

class LARS final : public LayerwiseOptimizer {
 public:
  explicit LARS(GradientSource& source, LARSOptions options = {});
  explicit LARS(const std::vector<NamedTensor>& parameters, LARSOptions options = {});

 private:
  void measure(const kernel::Elements& elements, std::int64_t step, double weight_decay,
               double* second) const override;
  void measure_there(std::span<const kernel::LayerPart> parts, std::int64_t step, double weight_decay,
                     const kernel::LayerSums& to) const override;
  double trust_ratio(double parameter_norm, double second_norm, double weight_decay) const override;
  void update(std::span<const kernel::Elements> list, const Pass& pass) const override;
  LARSOptions options_;
};

// Layer-wise adaptive moments (You et al.: "Large Batch Optimization for Deep Learning: Training BERT in 76
// minutes", 2019, algorithm 2, with phi the identity), with m and v Adam's moments after this step t:
//
//   u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * w
//   ratio = |w| / |u|, and 1 where |w| or |u| is 0
//   w = w - lr * ratio * u
//
// What is left out has a ratio of 1 and no weight decay: Adam.
struct LAMBOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 1e-2;
  double trust_clip = 0;  // the ratio is at most this; 0: without a limit
  bool vectors = false;   // parameters of fewer than two dimensions are adapted and decayed too
  MasterWeights master_weights = MasterWeights::none;
  Offload offload = {};
};

class LAMB final : public LayerwiseOptimizer {
 public:
  explicit LAMB(GradientSource& source, LAMBOptions options = {});
  explicit LAMB(const std::vector<NamedTensor>& parameters, LAMBOptions options = {});

 private:
  void measure(const kernel::Elements& elements, std::int64_t step, double weight_decay,
               double* second) const override;
  void measure_there(std::span<const kernel::LayerPart> parts, std::int64_t step, double weight_decay,
                     const kernel::LayerSums& to) const override;
  double trust_ratio(double parameter_norm, double second_norm, double weight_decay) const override;
  void update(std::span<const kernel::Elements> list, const Pass& pass) const override;
  LAMBOptions options_;
};

}  // namespace lockstep
