#include "report/folder_content.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/job_name.h"
#include "base/option_name.h"
#include "lockstep/base/error.h"
#include "lockstep/base/folder.h"
#include "report/folder_lock.h"
#include "report/run_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// A file of a run, and a text near its beginning without which it is somebody else's.
struct Mark {
  const char* name;
  std::string_view text;
};
constexpr Mark kFiles[] = {{"config.json", "\"lane_batch\""},
                           {"summary.json", "\"lane_batch\""},
                           {"steps.csv", "step,epoch,loss,lr,samples,"},
                           {"epochs.csv", "epoch,step,seconds_per_step,"},
                           {"evaluations.csv", "step,epoch,validation_loss,"},
                           {"noise.csv", "step,gradient_square,trace,"},
                           {"buckets.csv", "step,bucket,bytes,"},
                           {"latency.csv", "bucket,bytes,count,p50_us,"},
                           {"trace.json", R"("process_name","pid":0,"tid":0,"args":{"name":"rank 0"}})"},
                           {"index.html", ".figures{display:flex"},
                           {"job.txt", ""}};  // see is_ours
constexpr std::size_t kMarkedBytes = 16384;

bool is_ours(const fs::path& file, const Mark& mark) {
  const std::optional<std::string> read = beginning_of(file, kMarkedBytes);
  if (!read) return false;
  const std::string& begin = *read;
  if (mark.name != std::string_view("job.txt")) return begin.find(mark.text) != std::string::npos;
  // One line, which earlier versions filled with any name: then what lies beside it tells.
  const std::size_t end = begin.find('\n');
  return end == begin.size() - 1 &&
         (is_job_name(begin.substr(0, end)) || is_ours(file.parent_path() / kFiles[0].name, kFiles[0]));
}

std::vector<fs::path> list(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator at(folder, error);
  for (const fs::directory_iterator end; !error && at != end; at.increment(error))
    found.push_back(at->path());
  if (error && error != std::errc::no_such_file_or_directory)
    throw SystemError("cannot list " + folder.string(), error.value());
  return found;
}

void erase(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw SystemError("cannot remove " + path.string(), error.value());
}

// The step in "step-00000120"; -1 for any other name, such as a user's "step-best" or "step-1000".
std::int64_t step_of(const fs::path& path) {
  constexpr std::string_view kBegin = "step-";
  constexpr std::size_t kFewestDigits = 8;
  const std::string name = path.filename().string();
  if (!name.starts_with(kBegin) || name.size() < kBegin.size() + kFewestDigits ||
      name.find_first_not_of("0123456789", kBegin.size()) != std::string::npos)
    return -1;
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(name.data() + kBegin.size(), name.data() + name.size(), step);
  return error == std::errc() ? step : -1;
}

// A checkpoint is a folder of its name, "step-00000120", with a manifest in it.
bool is_checkpoint(const fs::path& path) {
  std::error_code ignored;
  return step_of(path) >= 0 && fs::exists(path / "manifest.json", ignored);
}

// Where a run's checkpoints lie, the inner folder first.
std::array<fs::path, 2> places_of(const fs::path& folder) {
  const fs::path checkpoints = RunFolder::checkpoints_of(folder);
  return {checkpoints / kSetAside, checkpoints};
}

bool is_hidden_checkpoint(const fs::path& path) {
  const std::string name = path.filename().string();
  return name == ".staging" || name == ".writer" || name == ".writer.new" ||
         name.starts_with(".removed-step-");
}

// What goes with the run, in those places.
bool is_of_run(const fs::path& path) { return is_checkpoint(path) || is_hidden_checkpoint(path); }

}  // namespace

std::optional<std::string> beginning_of(const fs::path& file, std::size_t most) {
  std::error_code ignored;
  if (!fs::is_regular_file(fs::symlink_status(file, ignored))) return std::nullopt;
  std::string begin(most, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(begin.data(), static_cast<std::streamsize>(most));
  begin.resize(static_cast<std::size_t>(in.gcount()));
  return begin;
}

bool is_leftover(const std::string& name) {
  if (name == FolderLock::kName || name == FolderLock::kName + std::string(".new")) return true;
  const std::size_t dot = name.rfind('.');
  if (!name.starts_with('.') || dot == 0 || dot + 1 == name.size()) return false;
  const std::string_view middle = std::string_view(name).substr(1, dot - 1);
  return std::ranges::any_of(kFiles, [&](const Mark& mark) { return middle == mark.name; }) &&
         name.find_first_not_of("0123456789", dot + 1) == std::string::npos;
}

bool is_unused(const fs::path& folder) {
  return std::ranges::all_of(list(folder),
                             [](const fs::path& path) { return is_leftover(path.filename().string()); });
}

fs::path find_foreign_file(const fs::path& folder) {
  std::error_code ignored;
  for (const Mark& mark : kFiles)
    if (const fs::path file = folder / mark.name;
        fs::exists(fs::symlink_status(file, ignored)) && !is_ours(file, mark))
      return file;
  return {};
}

bool has_checkpoint(const fs::path& folder) {
  return std::ranges::any_of(list(RunFolder::checkpoints_of(folder)), is_checkpoint);
}

fs::path newest_checkpoint_in(const fs::path& folder) {
  fs::path newest;
  for (const fs::path& path : list(folder))
    if (is_checkpoint(path) && step_of(path) > step_of(newest)) newest = path;
  return newest;
}

bool is_checkpoint_of(const fs::path& folder, const fs::path& checkpoint) {
  std::error_code ignored;
  // As it is given, which may be by a link that goes, and where it really lies.
  for (const fs::path& path : {fs::absolute(checkpoint, ignored), fs::canonical(checkpoint, ignored)})
    for (const fs::path& place : places_of(folder))
      if (is_of_run(path) && fs::equivalent(path.parent_path(), place, ignored)) return true;
  return false;
}

void remove_run(const fs::path& folder) {
  if (const fs::path file = find_foreign_file(folder); !file.empty())
    throw UsageError(
        fmt::format("{} would remove {}, which no run of lockstep train wrote; accepted: "
                    "another folder, or move that file away",
                    option_text("overwrite"), file.string()));
  for (const Mark& mark : kFiles) erase(folder / mark.name);
  for (const fs::path& place : places_of(folder)) {
    std::error_code error, ignored;
    if (!fs::is_directory(place, error)) {
      if (error && error != std::errc::no_such_file_or_directory)  // two runs' checkpoints would lie together
        throw SystemError("cannot look at " + place.string(), error.value());
      continue;
    }
    for (const fs::path& path : list(place))
      if (is_of_run(path)) erase(path);
    if (!fs::is_symlink(place, ignored) && fs::is_empty(place, ignored)) erase(place);
  }
}

std::vector<std::string> set_aside_later(const fs::path& folder, std::int64_t step) {
  const fs::path checkpoints = RunFolder::checkpoints_of(folder);
  std::vector<std::string> moved;
  for (const fs::path& path : list(checkpoints)) {
    if (step_of(path) <= step) continue;
    const std::string name = path.filename().string();
    make_folder(checkpoints / kSetAside);
    fs::path target = checkpoints / kSetAside / name;
    std::error_code error;
    for (int i = 2; fs::exists(target, error); ++i) target.replace_filename(fmt::format("{}.{}", name, i));
    fs::rename(path, target, error);
    if (error) throw SystemError("cannot move " + path.string() + " to " + target.string(), error.value());
    moved.push_back(name);
  }
  // What the run leaves out of its tables next is on disk when they are: after a power cut its checkpoints
  // must not be back. The new place first, so that none is in neither. Also where nothing was left to move:
  // an attempt before this one may have been killed before it had synced what it moved.
  if (std::error_code ignored; fs::is_directory(checkpoints / kSetAside, ignored))
    for (const fs::path& place : places_of(folder)) sync_folder(place);
  std::ranges::sort(moved);
  return moved;
}

void remove_leftovers(const fs::path& folder) {
  for (const fs::path& path : list(folder))
    if (const std::string name = path.filename().string(); is_leftover(name) && name != FolderLock::kName)
      erase(path);
  for (const fs::path& path : list(RunFolder::checkpoints_of(folder)))
    if (is_hidden_checkpoint(path)) erase(path);
}

}  // namespace lockstep
