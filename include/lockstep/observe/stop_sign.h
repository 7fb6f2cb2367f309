// How a launcher that is told to stop asks the workers where they stand, before it tells them: by a file in the
// folder of dumps. A rank that has waited for long sees it and writes its flight recorder; a signal would end a
// program that does not expect it, and a library has no business with the program's signals.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

inline std::filesystem::path stop_sign(const std::filesystem::path& folder, const std::string& job) {
  return folder / ("stop-" + job);
}

}  // namespace lockstep
