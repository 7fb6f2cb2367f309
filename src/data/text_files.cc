#include <algorithm>
#include <string>

#include "data/file_bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/data/files.h"

namespace lockstep {
namespace {

constexpr auto kMost = std::int64_t{4} << 30;
constexpr auto kAccepted = "a file of text, or a folder of .txt files, of 4 GiB in all at most";

}  // namespace

std::vector<std::uint8_t> read_text(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return read_whole_file(path, kMost, kAccepted);

  // The order in which a folder lists its files differs between machines; that of the names does not.
  std::vector<std::filesystem::path> files;
  std::filesystem::directory_iterator entry(path, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    if (entry->path().extension() == ".txt") files.push_back(entry->path());
  if (error) throw SystemError("cannot read the folder " + shown(path), error.value());
  if (files.empty()) throw UsageError("no .txt file in " + shown(path) + "; accepted: " + kAccepted);
  std::sort(files.begin(), files.end());

  std::vector<std::uint8_t> all;
  for (const auto& file : files) {
    const auto bytes = read_whole_file(file, kMost - static_cast<std::int64_t>(all.size()), kAccepted);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

}  // namespace lockstep
