// Optimizers in one pass: each element's parameter, gradient and state are read once and written once, with
// the widest instructions of the processor.
//
//   lockstep::AdamW optimizer(ddp, {.lr = 5e-4, .weight_decay = 1e-4});
//   optimizer.step();                  // waits for the gradients, then updates
//   optimizer.zero_grad();             // in a plain loop; lanes reset gradients themselves, but where a
//                                      // step's update is given up it ends that step there, too
//
// Parameter groups: a selector by name overrides the options for the parameters it matches.
//
//   optimizer.add_group({.match = [](const std::string& name) { return name.ends_with("bias"); },
//                        .lr_scale = 1, .weight_decay = 0});
//
// For f32 and f64 the results are those of libtorch's optimizers of the same name, bit for bit, as long as
// libtorch too uses what the processor has (ATEN_CPU_CAPABILITY=default takes fused multiply-add from it) and
// rounds square roots right (builds with MKL's vector library don't: Adam then differs in the last place).
// For f16 and bf16 the arithmetic is that of f32, rounded once when a value is stored, which is closer than
// libtorch's, whose steps each round (and round 0.999 to 1 in bf16). Small updates are lost all the same when
// they are added to a 16-bit parameter; master weights keep them:
//
//   lockstep::AdamW optimizer(ddp, {.lr = 5e-4, .master_weights = lockstep::MasterWeights::f32});
//
// Each 16-bit parameter then has a copy in f32, made from it in the constructor, and its state is f32. One
// pass reads the gradient, master and state, and writes master, state and the rounded parameter: with AdamW
// 16 bytes a parameter, gradient included (docs/precision.md). f32 and f64 parameters stay as they are. The
// number of threads is libtorch's, at::get_num_threads(); it makes no difference to the result, and neither
// does the layout in memory. Parameters on another device than the processor are updated there, in the order
// of its current stream, by kernels that a library for that device adds (optim/update.h).
//
// State that has no room in memory lies in a file (offload/offload.h), with the same bits:
//
//   lockstep::AdamW optimizer(ddp, {.lr = 5e-4, .offload = {.folder = "/scratch"}});
#pragma once

#include <torch/types.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/grad/gradient_source.h"
#include "lockstep/offload/offload.h"

namespace lockstep {

class Crew;
class DiskState;
class HostCopies;
struct StateInMemory;
namespace kernel {
struct Elements;
}

// What is kept of 16-bit parameters: nothing, or an f32 copy that is updated in their place.
enum class MasterWeights : std::uint8_t { none, f32 };

// Overrides for some parameters. The group added last that matches wins.
struct ParameterGroup {
  std::function<bool(const std::string& name)> match = {};
  double lr_scale = 1;  // times the optimizer's lr
  std::optional<double> weight_decay = {};
  std::optional<bool> adapt = {};  // whether LARS and LAMB (optim/layerwise.h) scale their rate
};

// Everything that step() remembers, as contiguous copies on the host: "exp_avg/fc.weight",
// "momentum_buffer/fc.weight", and "step/fc.weight", the number of updates of that parameter so far (int64,
// no dimensions; an unused parameter stays behind); "master/fc.weight" of a 16-bit one with master weights.
// Each parameter has all its entries from the beginning.
// Independent of the layout in memory and of how parameters are cut among the workers, so it loads under any
// strategy and any number of workers. The learning rate is the caller's.
using StateDict = std::map<std::string, torch::Tensor>;

// An entry of the state dict as this worker has it: all of it, or some elements. For checkpoints that every
// worker writes its part of.
struct StatePart {
  std::string name;                 // of the entry
  std::vector<std::int64_t> whole;  // its sizes
  ElementRange elements = {};       // of those, which this worker has; may be none
  torch::ScalarType dtype = torch::kFloat32;
  // They: the optimizer's own memory, which the next step() changes. Undefined where the state is on disk.
  torch::Tensor tensor;
  std::size_t slice = 0;    // whose state it is, of source().slices()
  bool everywhere = false;  // a copy, of what every worker has alike: the number of updates
  // Elements are counted as in a contiguous tensor. Else in the order of the parameter's memory, which is
  // another: GradientSource::join() and cut() translate.
  bool plain = true;
  std::size_t array = 0;  // which of the slice's it is; the master is the last
  // Of state on disk: its bytes in order, a piece at a time; or all of it, in memory of its own. Until the
  // next step(), on any thread.
  using Take = std::function<void(std::span<const std::byte> bytes)>;
  std::function<void(const Take& take)> stream = {};
  std::function<torch::Tensor()> fetch = {};
};
// What an entry has to be.
struct StateEntry {
  torch::ScalarType dtype;
  std::vector<std::int64_t> sizes;
};

class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Synchronizes the source, updates the slices that have a gradient, shares the updates, and ends the
  // source's step. Throws UsageError, before anything has changed, for a gradient that is sparse or does not
  // fit its parameter. `gradient_scale`: gradients are so many times too large, as those of a scaled loss are
  // (optim/grad_scaler.h); they are divided in the same pass, in the arithmetic's type.
  //
  // A parameter that somebody else has written to since the last step (loaded weights) is taken over into its
  // master, element by element, where it is not the master's rounded value. What is written through .data()
  // or set_data() leaves no trace, and is lost: write under a NoGradGuard.
  void step(double gradient_scale = 1);
  void zero_grad();  // gradients become undefined
  // Returns how many parameters it matches: 0 is no error, and often a name that was spelled wrong.
  std::size_t add_group(ParameterGroup group);

  double lr() const { return lr_; }
  void set_lr(double lr);  // 0 or more

  // Whole tensors; nothing where it is not wanted. Collective where this worker has only a part of them.
  StateDict state_dict(bool wanted = true) const;
  // Takes this worker's part. Throws UsageError naming the first entry that is missing, unknown or of another
  // shape; changes nothing then.
  void load_state_dict(const StateDict& state);
  // The same part by part, without asking anybody: in one order on every rank, and together the state dict.
  std::vector<StatePart> state_parts() const;
  // Throws as load_state_dict does for a state dict of these entries.
  void check_state(const std::map<std::string, StateEntry>& entries) const;
  // Has `read` fill the tensor of every part; one that was read has been checked. Parts on disk have a tensor
  // meanwhile, one at a time.
  void load_parts(const std::function<void(const StatePart& part)>& read);
  // Memory that this worker holds for it where its parameters are.
  std::size_t state_bytes() const;
  // What this worker keeps on disk, or of parameters on a GPU on the host; nullopt: nothing.
  std::optional<OffloadFigures> offload() const;
  GradientSource& source() const { return *source_; }

 protected:
  // What an optimizer looks at in adapt() before it updates: of the parameters, or of the moments too, which
  // take in the gradient there and not in update().
  enum class Adapts : std::uint8_t { to_nothing, to_parameters, to_moments };
  // What the constructors of the concrete optimizers know of themselves.
  struct Traits {
    std::string name;                      // "AdamW", for messages
    std::vector<std::string> state_names;  // at most two: Elements::first, Elements::second
    double lr = 0;
    double weight_decay = 0;
    MasterWeights master_weights = MasterWeights::none;
    Offload offload = {};
    Adapts adapts = Adapts::to_nothing;
  };
  // `source` outlives the optimizer.
  Optimizer(GradientSource& source, Traits traits);
  // Gradients are grad(), as they are.
  Optimizer(const std::vector<NamedTensor>& parameters, Traits traits);

  // How slices are updated; those that are updated alike may go in one call.
  struct Pass {
    std::int64_t step = 0;  // the how-manyth update of the parameter: 1, 2 …
    double lr = 0;
    double weight_decay = 0;
    int way = 0;  // the optimizer's own, from adapt()
    auto operator<=>(const Pass&) const = default;
  };
  // Some elements of one parameter, or of several on one device, which it then has in one go. Called by
  // several threads.
  virtual void update(std::span<const kernel::Elements> list, const Pass& pass) const = 0;

  struct Slot;    // one slice and its state
  struct Update;  // one slice's part of a step
  // Before any of a step's updates, for optimizers that look at whole parameters first: may change how they
  // are updated, but not which update it is. Every rank calls it for the same parameters. Most have nothing
  // to do here.
  virtual void adapt(std::span<Update> updates);
  // Behind a step, on every rank. Most have nothing to do here either.
  virtual void updated();

 private:
  friend class LayerwiseOptimizer;
  friend class OneBitAdam;
  void make_slots();
  void make_masters();
  void take_over();        // what others have written
  void remember_writes();  // so that it is known next time
  void take_step(double gradient_scale);
  void let_go() const noexcept;
  static bool is_wide(const Slot& slot, const torch::Tensor& gradient);
  void check_gradient(const Slot& slot, const torch::Tensor& gradient) const;
  void run(const std::vector<Update>& updates);
  void run_here(const std::vector<const Update*>& updates, std::span<const std::size_t> slices);
  void for_each_held(SliceStore::Use use,
                     const std::function<void(std::span<const std::size_t> slices)>& fn) const;
  void hold(std::span<const StateInMemory> parts, SliceStore::Use use) const;
  void run_on_devices(const std::vector<Update>& updates);
  // The same for state on disk (optim/offloaded.cc).
  void make_slots_on_disk();
  void take_over_on_disk(const std::vector<NamedTensor>& parameters);
  void run_on_disk(const std::vector<Update>& updates);
  torch::Tensor fetch(const Slot& slot, std::size_t array) const;
  // The same for parameters on a GPU, whose state is the host's (optim/host_update.cc).
  void leave_device();
  void take_over_from_device();
  void run_on_host(const std::vector<Update>& updates);
  void send_what_is_in_memory(const std::vector<Update>& updates);
  OffloadFigures host_figures() const;
  double host_update_rate() const;
  Crew& crew();

  std::unique_ptr<GradientSource> own_source_;  // of a plain list of parameters
  GradientSource* source_;
  Traits traits_;
  double lr_;
  std::vector<Slot> slots_;
  std::unique_ptr<Crew> crew_;
  std::unique_ptr<DiskState> disk_;          // null: state is in memory
  std::unique_ptr<HostCopies> host_copies_;  // of parameters on a GPU that the host updates; null: none
  mutable std::optional<OffloadFigures> host_rates_;  // measured once
};

struct SGDOptions {
  double lr = 1e-2;
  double momentum = 0;
  double dampening = 0;     // the first gradient enters the momentum undamped
  double weight_decay = 0;  // added to the gradient
  bool nesterov = false;    // needs momentum, and no dampening
  MasterWeights master_weights = MasterWeights::none;
  Offload offload = {};
};

class SGD final : public Optimizer {
 public:
  explicit SGD(GradientSource& source, SGDOptions options = {});
  explicit SGD(const std::vector<NamedTensor>& parameters, SGDOptions options = {});

 private:
  void update(std::span<const kernel::Elements> list, const Pass& pass) const override;
  SGDOptions options_;
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  // added to the gradient
  MasterWeights master_weights = MasterWeights::none;
  Offload offload = {};
};

class Adam final : public Optimizer {
 public:
  explicit Adam(GradientSource& source, AdamOptions options = {});
  explicit Adam(const std::vector<NamedTensor>& parameters, AdamOptions options = {});

 private:
  void update(std::span<const kernel::Elements> list, const Pass& pass) const override;
  AdamOptions options_;
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;  // taken off the parameter
  MasterWeights master_weights = MasterWeights::none;
  Offload offload = {};
};

class AdamW final : public Optimizer {
 public:
  explicit AdamW(GradientSource& source, AdamWOptions options = {});
  explicit AdamW(const std::vector<NamedTensor>& parameters, AdamWOptions options = {});

 private:
  void update(std::span<const kernel::Elements> list, const Pass& pass) const override;
  AdamWOptions options_;
};

}  // namespace lockstep
