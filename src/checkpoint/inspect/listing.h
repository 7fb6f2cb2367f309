// Which checkpoints there are, by their names and what the file system knows of them.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct ListedCheckpoint {
  std::filesystem::path folder;
  std::optional<std::int64_t> step;  // none: neither its name nor its manifest tells
  std::size_t files = 0;             // besides the manifest
  std::uint64_t bytes = 0;           // of all, the manifest included
  std::time_t written = 0;           // when it was finished
};

// Those of a run's folder or of a folder of checkpoints, oldest first, or the one that `path` is: what
// `--resume` takes. Those that go while they are looked at are left out. Throws UsageError when there is
// none, SystemError when the folder can't be read.
std::vector<ListedCheckpoint> list_checkpoints_at(const std::filesystem::path& path);

// A path inside of `given`, as people who gave that one write it: relative when it was.
std::filesystem::path as_given(const std::filesystem::path& found, const std::filesystem::path& given);

std::uint64_t total_bytes(const std::vector<ListedCheckpoint>& listed);

nlohmann::ordered_json to_json(const ListedCheckpoint& listed);
// For people: a table.
std::string describe(const std::vector<ListedCheckpoint>& listed, bool colours);

}  // namespace lockstep
