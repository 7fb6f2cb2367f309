// Parts of an update whose state is in memory for the moment.
#pragma once

#include "optim/disk_state.h"
#include "optim/slot.h"

namespace lockstep {

// The elements of `part`, which is of this update's slot: parameter and gradient where they lie, state and
// master in the page. `states`: arrays before the master.
template <class Update>
kernel::Elements elements_in(const StateInMemory& part, const Update& update, std::size_t states) {
  kernel::Elements elements = update.elements_now().part(part.begin, part.count);
  if (states > 0) elements.first = part.array(0);
  if (states > 1) elements.second = part.array(1);
  if (!update.slot.has_master) return elements;
  // A gradient of f32 updates the master as any f32 parameter.
  (update.to_stored_master ? elements.parameter : elements.master) = part.array(states);
  return elements;
}

}  // namespace lockstep
