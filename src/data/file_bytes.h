// Whole files in memory, read with suspicion.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

// A path for a message: quoted, and on one line whatever it is made of.
std::string shown(const std::filesystem::path& path);

// The bytes of a regular file. `most` guards memory against a file that cannot be meant; `accepted` ends the
// message when the file is missing, is no file, or is larger. Throws UsageError; SystemError when reading
// fails.
std::vector<std::uint8_t> read_whole_file(const std::filesystem::path& file, std::int64_t most,
                                          const std::string& accepted);

}  // namespace lockstep
