#include "checkpoint/step_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>

#include "lockstep/base/error.h"

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
  const auto refuse = [&](const std::error_code& error) {
    throw SystemError("cannot list the checkpoints in " + folder.string(), error.value());
  };
  std::vector<PublishedCheckpoint> found;
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  for (const std::filesystem::directory_iterator end; !error && at != end; at.increment(error)) {
    const auto step = parse_step_name(at->path().filename().string());
    if (!step) continue;
    std::error_code unknown;
    const bool is_folder = at->is_directory(unknown);
    if (unknown && unknown != std::errc::no_such_file_or_directory)
      refuse(unknown);  // else it was just removed
    if (is_folder) found.push_back({*step, at->path()});
  }
  // Nothing follows from half a list: who took it for the whole would delete, or begin anew.
  if (error) refuse(error);
  std::ranges::sort(found, {}, &PublishedCheckpoint::step);
  return found;
}

}  // namespace lockstep
