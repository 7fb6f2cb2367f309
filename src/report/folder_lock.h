// Who owns a run's folder.
#pragma once

#include <filesystem>

#include "lockstep/base/fd.h"

namespace lockstep {

// The right to write into a run's folder, given back when the process ends in whatever way. A lock on the
// file `.lock` in it, by fcntl, which holds on NFS too; the file says who has it, and goes with the lock. A
// file system without locks gives everybody the right.
class FolderLock {
 public:
  static constexpr const char* kName = ".lock";

  // Throws UsageError that names the owner when another process has it, or the file when it is none of ours;
  // SystemError when the file can't be made.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::filesystem::path file_;
  UniqueFd fd_;
};

}  // namespace lockstep
