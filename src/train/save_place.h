// Where a checkpoint's parts go: which workers see its hidden folder, what each writes there, and how the
// rest comes to rank 0.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/group.h"
#include "train/save_job.h"

namespace lockstep {

struct SavePlace {
  std::filesystem::path folder;         // of checkpoints, then the hidden one of this checkpoint
  bool alone = false;                   // rank 0 writes everything
  std::vector<std::uint8_t> sees = {};  // by rank: whether it has the hidden folder, too
};

// Who sees rank 0's hidden folder under the name that it would have here. `draft`: on rank 0. Collective.
void find_place(const Group& world, const CheckpointDraft* draft, SavePlace& place);

// Workers that see no folder send what only they can save to rank 0, which writes their files; gives what the
// manifest is to say of those. Needs little memory. Collective; throws SystemError on rank 0, when all has
// been sent.
std::vector<std::string> bring_parts(const Group& world, const SavePlace& place, const SavedState& state,
                                     const SliceOwners& owners);

// What this worker writes itself.
std::vector<FileToSave> files_to_save(const Group& world, const SavePlace& place, SavedState state,
                                      const SliceOwners& owners);

}  // namespace lockstep
