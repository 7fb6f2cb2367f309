// An optimizer's state in a file: passes over it, pieces of it, and what they cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/offload/offload.h"
#include "offload/pager.h"
#include "offload/step_waits.h"
#include "optim/state_pages.h"

namespace lockstep {

// Some elements of a slice whose arrays are in memory now.
struct StateInMemory {
  std::size_t slice = 0;
  std::size_t begin = 0;  // counted from the slice's first
  std::size_t count = 0;
  std::byte* arrays = nullptr;
  std::size_t array_stride = 0;
  void* array(std::size_t which) const { return arrays + which * array_stride; }
};

class DiskState {
 public:
  // Makes the file and measures it. All arrays are zeros once initialize() has run, which has to come before
  // anything else. Throws OffloadError, and UsageError for options that can't be.
  DiskState(const Offload& offload, std::vector<StateShape> shapes);

  using Work = std::function<void(std::span<const StateInMemory> parts)>;
  // Page by page, zeros that `work` may fill.
  void initialize(const Work& work);
  // Page by page, those of the slices that are `wanted`. What `use` says is written of them; a page that has
  // none is left out. `work` gets the wanted parts alone. Throws OffloadError, and what `work` throws.
  void pass(const std::vector<bool>& wanted, const std::function<PageUse(std::size_t slice)>& use,
            const Work& work);

  // Array `which` of a slice, in order, a piece at a time. Not beside a pass; reads may go on side by side.
  using Take = std::function<void(std::span<const std::byte> bytes)>;
  void read(std::size_t slice, std::size_t which, const Take& take) const;
  void write(std::size_t slice, std::size_t which, std::span<const std::byte> bytes);

  std::size_t staging_bytes() const { return pager_.staging_bytes(); }
  // What these passes should take, by the rates that were measured.
  double predicted_ms(const StepPasses& passes) const;
  // A step is through: what passes waited since the last one is its waiting.
  void end_step() { waits_.end_step(pager_.waited_ns()); }
  // All but predicted_ms, which is the optimizer's to say.
  OffloadFigures figures() const;

 private:
  std::vector<StateInMemory> parts_of(std::size_t page, std::span<std::byte> bytes,
                                      const std::vector<bool>& wanted) const;

  std::vector<StateShape> shapes_;
  StatePages layout_;
  Pager pager_;
  DiskRates rates_;
  StepWaits waits_;
};

}  // namespace lockstep
