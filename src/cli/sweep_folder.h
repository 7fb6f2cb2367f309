// The folder of a sweep: the files that it may replace, and whose they are.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

namespace lockstep::cli {

// A file of a sweep, and a text near its beginning without which it is somebody else's.
struct SweepFile {
  const char* name;
  std::string_view mark;
};

// Makes the folder. Throws UsageError.
void make_sweep_folder(const std::filesystem::path& folder);
// The same rules as for the folder of a run: it has to be unused, or with `overwrite` to hold none of `files`
// that no sweep wrote. Throws UsageError.
void check_sweep_folder(const std::filesystem::path& folder, bool overwrite,
                        std::span<const SweepFile> files);

}  // namespace lockstep::cli
