// The names of checkpoints' folders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

std::string step_name(std::int64_t step);                            // 120 → "step-00000120"
std::optional<std::int64_t> parse_step_name(std::string_view name);  // only what step_name gives

struct PublishedCheckpoint {
  std::int64_t step = 0;
  std::filesystem::path folder;
};
// The checkpoints of a folder, oldest first; none when there is no such folder. Throws SystemError when it
// can't be read.
std::vector<PublishedCheckpoint> list_checkpoints(const std::filesystem::path& folder);

}  // namespace lockstep
