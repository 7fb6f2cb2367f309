// Checkpoints of a run: a folder with one sub-folder a checkpoint, `step-00000120`, each holding its files
// and a manifest with their sizes and SHA-256.
//
// Writing goes to a hidden staging folder, is synced, and is published by one rename: a SIGKILL at any
// instant leaves the checkpoints before it whole, and what was half written is removed by the next writer.
// The manifest can be read back in one way only, so that a change of any byte of it is seen as well.
//
// Several workers may write one checkpoint, each its own files of tensors: one of them begins the draft, and
// publishes it when all have written. Lockstep's trainer does.
//
// Needs no libtorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

// A checkpoint does not fit its manifest.
class DamagedCheckpoint : public UsageError {
 public:
  using UsageError::UsageError;
};

// A checkpoint that is being written. Without publish() nothing of it stays.
class CheckpointDraft {
 public:
  CheckpointDraft(CheckpointDraft&&) noexcept;
  CheckpointDraft& operator=(CheckpointDraft&&) = delete;
  ~CheckpointDraft();

  // The hidden folder that plain files go into, of any name but manifest.json, those of other processes too.
  const std::filesystem::path& folder() const;
  // Hashes the files, and gives the checkpoint its name. `parts`: what the trainer's writers of
  // tensors' parts say of theirs, which are not read again; programs give none, and each of their workers may
  // write whole files of its own. Returns the checkpoint's folder. Throws
  // UsageError where the parts are not the whole, SystemError. Once.
  std::filesystem::path publish(std::span<const std::string> parts = {});

 private:
  friend class CheckpointStore;
  struct State;
  explicit CheckpointDraft(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class CheckpointStore {
 public:
  // `keep`: how many stay, the one just written included; 0: all. Nothing is touched before the first write.
  explicit CheckpointStore(std::filesystem::path folder, int keep = 2);

  // Calls `fill` with the staging folder, in which it makes plain files of any name but manifest.json, then
  // publishes and returns the checkpoint's folder. Replaces a checkpoint of the same step. Throws what `fill`
  // throws, SystemError (a full disk); then nothing of it is left and the checkpoints before stay.
  //
  // Older checkpoints beyond `keep` are removed; later ones, which a run that went back to an older one still
  // has, are left alone. One writer at a time: a second one waits up to half a minute for the first.
  std::filesystem::path write(std::int64_t step,
                              const std::function<void(const std::filesystem::path&)>& fill);

  // The same in two steps. The store's folder is this draft's alone until it is gone.
  CheckpointDraft begin(std::int64_t step) const;

  // Published checkpoints, oldest first; none when the folder is not there. Throws SystemError when it can't
  // be read.
  std::vector<std::filesystem::path> list() const;

  const std::filesystem::path& folder() const { return folder_; }

  // Removes what writers that were killed left, whole checkpoints that were on their way out among it.
  // write() does so too.
  void sweep() const;

 private:
  friend class CheckpointDraft;
  void prune(std::int64_t newest_step) const;

  std::filesystem::path folder_;
  int keep_;
};

// Writes and syncs a file that must not exist: for `fill`. Throws SystemError that names the file; then there
// is none.
void write_file(const std::filesystem::path& file, std::span<const std::byte> bytes);
void write_file(const std::filesystem::path& file, std::string_view text);

// Checks every file of a checkpoint against its manifest. Throws DamagedCheckpoint that names the file, what
// is wrong with it, and the newest whole checkpoint before it (or, if there is none, after it) in the same
// folder; SystemError for a file that this process may not read.
void verify_checkpoint(const std::filesystem::path& checkpoint);

// The same without reading tensors that workers have written in parts: those are looked at as they are read.
void check_frame(const std::filesystem::path& checkpoint);
// Throws DamagedCheckpoint as these do.
[[noreturn]] void refuse_damaged(const std::filesystem::path& checkpoint, const std::string& damage);

// What `--resume PATH` means: a checkpoint, a folder of checkpoints (the newest), or a run's folder (the
// newest in its `checkpoints`). It is not yet verified. Throws UsageError when there is none, SystemError
// when the folder can't be read.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

// Calls `use` with find_checkpoint(path), verified (check_frame). The run that writes it may go on and remove
// it meanwhile: then again with the one that is the newest now, so `use` begins by forgetting what it has
// read. Throws what these and `use` throw.
void use_checkpoint(const std::filesystem::path& path,
                    const std::function<void(const std::filesystem::path&)>& use);

// The step of a checkpoint's folder, from its name. Throws UsageError for any other name.
std::int64_t checkpoint_step(const std::filesystem::path& checkpoint);

}  // namespace lockstep
