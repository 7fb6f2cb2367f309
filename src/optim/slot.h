// One slice of an optimizer, and its part of a step.
#pragma once

#include "lockstep/optim/optimizer.h"
#include "optim/layout.h"
#include "optim/update.h"

namespace lockstep {

// What one thread takes at a time: enough to hide the hand-over, small enough to share out evenly.
inline constexpr std::size_t kPartElements = 64 << 10;

struct Optimizer::Slot {
  std::string name;                  // of the parameter
  std::vector<std::int64_t> whole;   // its sizes
  ElementRange elements;             // of those, which are updated here
  torch::Tensor parameter;           // what is updated of it
  std::vector<torch::Tensor> state;  // as Traits::state_names
  torch::Tensor master = {};         // its f32 copy; undefined: it has none, or on disk
  bool has_master = false;
  bool on_disk = false;      // state and master; the slice's number there is the slot's
  StateOrder made_for = {};  // of what is on disk, which has no tensor that would remember it
  std::int64_t step = 0;     // updates so far
  double lr_scale = 1;
  std::optional<double> weight_decay = {};  // a group's; else the optimizer's
  std::optional<bool> adapt = {};           // likewise
  std::int64_t version = 0;                 // of the whole parameter when its master was last in step with it

  // Of the state, and of what is updated.
  torch::ScalarType kept_type() const { return has_master ? torch::kFloat32 : parameter.scalar_type(); }
  // That the parameter is still what its state on disk was made for; throws UsageError. State in memory has
  // strides of its own, and goes on with a parameter that is laid out anew.
  void check_on_disk(const std::string& optimizer) const;
};

struct Optimizer::Update {
  Slot& slot;
  Arrays arrays;
  kernel::Elements elements;
  Pass pass;
  // A gradient of f32 updates the master, which is on disk, as any f32 parameter.
  bool to_stored_master = false;
  // The parameter is on disk (SliceStore), and has other memory each time that it is held.
  bool parameter_comes = false;

  kernel::Elements elements_now() const {
    kernel::Elements now = elements;
    if (parameter_comes) now.parameter = slot.parameter.data_ptr();
    return now;
  }
  // Behind the kernels: copies go back, and a master that was updated as a parameter is rounded.
  void write_back() const {
    arrays.write_back();
    if (slot.master.defined() && elements.master == nullptr) slot.parameter.copy_(slot.master);
  }
};

}  // namespace lockstep
