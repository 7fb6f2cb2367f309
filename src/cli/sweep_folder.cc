#include "cli/sweep_folder.h"

#include <fmt/format.h>

#include "base/shell_word.h"
#include "lockstep/base/error.h"
#include "lockstep/base/folder.h"
#include "report/folder_content.h"

namespace lockstep::cli {

namespace fs = std::filesystem;

void make_sweep_folder(const fs::path& folder) {
  try {
    make_folder(folder);  // runs in it may have checkpoints
  } catch (const SystemError& refused) {
    throw UsageError(fmt::format("--out {}: {}", folder.string(), refused.what()));
  }
}

void check_sweep_folder(const fs::path& folder, bool overwrite, std::span<const SweepFile> files) {
  if (!overwrite && !is_unused(folder))
    throw UsageError(
        fmt::format("--out {} is not empty; accepted: another folder, or --overwrite for a new sweep",
                    shell_word(folder.string())));
  std::error_code ignored;
  for (const SweepFile& file : files) {
    const fs::path path = folder / file.name;
    if (!fs::exists(fs::symlink_status(path, ignored)) ||
        beginning_of(path, 4096).value_or("").find(file.mark) != std::string::npos)
      continue;
    throw UsageError(
        fmt::format("--overwrite would remove {}, which no sweep wrote; accepted: another folder, or move "
                    "that file away",
                    path.string()));
  }
}

}  // namespace lockstep::cli
