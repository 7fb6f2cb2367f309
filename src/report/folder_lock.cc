#include "report/folder_lock.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

FolderLock::FolderLock(const std::filesystem::path& folder) : lock_(folder / kName) {
  if (const auto other = lock_.try_take())
    throw UsageError(
        fmt::format("{} is being written by {}; accepted: another folder, or when that has ended",
                    folder.string(), other->who));
}

}  // namespace lockstep
