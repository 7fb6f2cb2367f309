// Who owns a run's folder.
#pragma once

#include <filesystem>

#include "base/lock_file.h"

namespace lockstep {

// The right to write into a run's folder, given back when the process ends in whatever way.
class FolderLock {
 public:
  static constexpr const char* kName = ".lock";

  // Throws UsageError that names the owner when another process has it, or the file when it is none of ours;
  // SystemError when the file can't be made.
  explicit FolderLock(const std::filesystem::path& folder);

 private:
  LockFile lock_;
};

}  // namespace lockstep
