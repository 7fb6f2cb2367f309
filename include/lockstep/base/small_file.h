// Reading a file that somebody else may have put there.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace lockstep {

// All of a regular file of at most `most_bytes`; none for anything else. A pipe, a device or a link to one is not
// waited for and not read.
std::optional<std::string> read_small_file(const std::string& path, std::size_t most_bytes);

}  // namespace lockstep
