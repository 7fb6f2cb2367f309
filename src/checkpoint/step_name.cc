#include "checkpoint/step_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>

namespace lockstep {

std::string step_name(std::int64_t step) { return fmt::format("step-{:08}", step); }

std::optional<std::int64_t> parse_step_name(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = -1;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  if (step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}

std::vector<PublishedCheckpoint> list_checkpoints(const std::filesystem::path& folder) {
  std::vector<PublishedCheckpoint> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    const auto step = parse_step_name(at->path().filename().string());
    if (step && at->is_directory(ignored)) found.push_back({*step, at->path()});
  }
  std::ranges::sort(found, {}, &PublishedCheckpoint::step);
  return found;
}

}  // namespace lockstep
