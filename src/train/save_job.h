// What one worker has to write of a checkpoint: copies, and files made of them. Knows no group.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "train/saved_state.h"

namespace lockstep {

// A file of the checkpoint, and what goes into it.
struct FileToSave {
  std::string file;
  std::string set;
  Metadata metadata;
  std::vector<SavedRun> runs;

  std::vector<RunForm> forms() const;
  // Whether some of it is read from disk while it is written: then it has to be before the next update.
  bool is_streamed() const;
};

// Copies the runs' tensors that the run goes on with. Gives the bytes that the copies take.
std::uint64_t copy_runs(std::vector<FileToSave>& files);

// Writes the file; each run's tensor is let go when it is written. `read`: called once, when the last of what
// is_streamed() has been read, before the file is synced. Throws SystemError, UsageError.
Manifest write_file_of_runs(const std::filesystem::path& folder, FileToSave& file,
                            const std::function<void()>& read);

}  // namespace lockstep
