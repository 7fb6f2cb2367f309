// A right that one process of a user has at a time, and that other users can't keep from it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/base/fd.h"

namespace lockstep {

struct LockHolder {
  std::string who;  // "process 17 on host", for a message
  bool other_user = false;
};

// A lock on a file, by fcntl, which holds on NFS too. The file is its user's alone (mode 0600): whoever may
// read a file may lock it against its owner, and so may anybody who can list a folder. It says who has it,
// and goes with the lock; the one of a process that was killed stays until the next owner. A file system
// without locks gives everybody the right.
class LockFile {
 public:
  explicit LockFile(std::filesystem::path file);
  ~LockFile();
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

  // None: it is this one's until it is gone. Otherwise who has it; never waits. Throws UsageError when the
  // file is none of ours, SystemError when it can't be made.
  std::optional<LockHolder> try_take();
  // Whether it keeps others out: not where the file system has no locks.
  bool alone() const { return alone_; }

 private:
  std::filesystem::path file_;
  UniqueFd fd_;  // empty: not taken
  bool alone_ = false;
};

}  // namespace lockstep
