// The hidden side of a folder of checkpoints: who may write, and folders that are not yet, or no longer,
// published.
#pragma once

#include <chrono>
#include <filesystem>

#include "base/lock_file.h"

namespace lockstep {

// The right to write into a folder of checkpoints, given back when the process ends in whatever way. A
// hidden file, which no reader looks at and which goes with the lock.
class WriterLock {
 public:
  static constexpr const char* kName = ".writer";

  // Waits for another writer of this user; throws SystemError that names it when that takes longer than
  // `patience`.
  explicit WriterLock(const std::filesystem::path& folder,
                      std::chrono::milliseconds patience = std::chrono::seconds(30));

 private:
  LockFile lock_;
};

// A folder inside `folder` that no reader looks at. Needs the lock. Removed with all in it by the destructor,
// and by the next writer when this process was killed.
class HiddenFolder {
 public:
  // Removes what killed writers left in `folder`. Needs the lock; throws SystemError.
  static void remove_stale(const std::filesystem::path& folder);
  // What killed writers left is removed first. Throws SystemError.
  static HiddenFolder make_empty(const std::filesystem::path& folder);
  // Takes `published` out of sight in one rename, so that a half-removed checkpoint is never seen.
  static HiddenFolder take(const std::filesystem::path& published);

  HiddenFolder(HiddenFolder&&) = delete;
  ~HiddenFolder();

  const std::filesystem::path& path() const { return path_; }
  // Gives the folder its public name, in one step also when a checkpoint of that name is there: that one is
  // then what is hidden and removed.
  void publish(const std::filesystem::path& target);

 private:
  explicit HiddenFolder(std::filesystem::path path);

  std::filesystem::path path_;  // empty once published
};

}  // namespace lockstep
