// Folders that survive a power cut.
#pragma once

#include <filesystem>

namespace lockstep {

// Makes `folder` and whatever is missing above it, and syncs the parent of each folder that was made, so that
// all names on the way are on disk before anything inside is called safe. A folder that is there already
// costs nothing. Throws SystemError that names it.
void make_folder(const std::filesystem::path& folder);

// Makes which names a folder holds survive a power cut. Throws SystemError.
void sync_folder(const std::filesystem::path& folder);

}  // namespace lockstep
