// What a checkpoint has of an optimizer's state, to the workers that need it, however it was cut when it was
// written.
#pragma once

#include <filesystem>

#include "lockstep/optim/optimizer.h"
#include "train/saved_state.h"

namespace lockstep {

// Where every worker sees the checkpoint and has parts, each reads the elements it needs and no others. What
// all have alike rank 0 reads and sends to all, and everything where a worker's machine has no such folder:
// tensor by tensor, so that nobody needs memory for more than one of them. Collective; throws Error on every
// rank: what rank 0 throws, and DamagedCheckpoint.
void load_optimizer_state(const std::filesystem::path& checkpoint, Optimizer& optimizer,
                          const SliceOwners& owners, const Group& world);

}  // namespace lockstep
