#include "checkpoint/inspect/listing.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "checkpoint/manifest.h"
#include "checkpoint/step_name.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/store.h"
#include "report/printable.h"
#include "report/table.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::optional<std::int64_t> step_of(const fs::path& checkpoint) {
  if (const auto named = parse_step_name(checkpoint.filename().string())) return named;
  try {
    return read_manifest(checkpoint).step;
  } catch (const Error&) {
    return std::nullopt;  // what is wrong with it is for those who look inside
  }
}

// None when it is there no longer.
std::optional<ListedCheckpoint> look_at(const fs::path& checkpoint) {
  ListedCheckpoint listed{.folder = checkpoint, .step = step_of(checkpoint)};
  struct stat status {};
  if (::stat(checkpoint.c_str(), &status) != 0) {
    if (errno == ENOENT) return std::nullopt;
    throw SystemError("cannot look at " + checkpoint.string(), errno);
  }
  listed.written = status.st_mtime;
  std::error_code error;
  for (fs::directory_iterator at(checkpoint, error), end; !error && at != end; at.increment(error)) {
    if (::stat(at->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    listed.bytes += static_cast<std::uint64_t>(status.st_size);
    // The manifest is written last; the folder's own time changes with what others do in it.
    if (at->path().filename() == kManifestName)
      listed.written = status.st_mtime;
    else
      ++listed.files;
  }
  if (error == std::errc::no_such_file_or_directory) return std::nullopt;
  if (error) throw SystemError("cannot list " + checkpoint.string(), error.value());
  return listed;
}

}  // namespace

std::vector<ListedCheckpoint> list_checkpoints_at(const fs::path& path) {
  std::vector<ListedCheckpoint> listed;
  while (listed.empty()) {  // a run removes those of before only once a newer one is there
    const fs::path newest = find_checkpoint(path);
    std::vector<PublishedCheckpoint> found;
    std::error_code error;
    if (fs::equivalent(newest, path, error))
      found.push_back({.folder = newest});
    else if (error == std::errc::no_such_file_or_directory)
      continue;  // else those beside the one that was asked for would be listed in its place
    else
      found = list_checkpoints(newest.parent_path());
    for (const PublishedCheckpoint& one : found)
      if (auto seen = look_at(as_given(one.folder, path))) listed.push_back(std::move(*seen));
  }
  return listed;
}

fs::path as_given(const fs::path& found, const fs::path& given) {
  return given.is_absolute() ? found : found.lexically_proximate(fs::current_path());
}

std::uint64_t total_bytes(const std::vector<ListedCheckpoint>& listed) {
  std::uint64_t bytes = 0;
  for (const ListedCheckpoint& one : listed) bytes += one.bytes;
  return bytes;
}

nlohmann::ordered_json to_json(const ListedCheckpoint& listed) {
  return {{"checkpoint", listed.folder.string()},
          {"step", listed.step ? nlohmann::ordered_json(*listed.step) : nlohmann::ordered_json()},
          {"files", listed.files},
          {"bytes", listed.bytes},
          {"written", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(listed.written))}};
}

std::string describe(const std::vector<ListedCheckpoint>& listed, bool colours) {
  Table table({{"checkpoint", Align::left}, {"step"}, {"files"}, {"size"}, {"written (UTC)", Align::left}});
  for (const ListedCheckpoint& one : listed)
    table.add_row({{one_line(printable(one.folder.filename().string()))},
                   {one.step ? std::to_string(*one.step) : "-"},
                   {std::to_string(one.files)},
                   {format_bytes(one.bytes)},
                   {fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(one.written))}});
  return table.render(colours);
}

}  // namespace lockstep
