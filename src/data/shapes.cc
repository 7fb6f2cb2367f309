#include "lockstep/data/shapes.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/host_name.h"
#include "base/lock_file.h"
#include "base/output_file.h"
#include "base/seconds_text.h"
#include "data/cifar10.h"
#include "data/file_bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/folder.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr auto kSettingsFile = "shapes.json";
constexpr std::chrono::milliseconds kSlowImage{5};  // several times what a busy core takes to draw one
constexpr int kDrawing = 1;                         // changes when the drawings do

std::string settings_of(const ShapesOptions& options) {
  return "{\"drawing\": " + std::to_string(kDrawing) + ", \"train\": " + std::to_string(options.train) +
         ", \"test\": " + std::to_string(options.test) + ", \"seed\": " + std::to_string(options.seed) +
         "}\n";
}

struct File {
  std::string name;
  Split split = Split::train;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

std::vector<File> files_of(const ShapesOptions& options) {
  std::vector<File> files;
  std::int64_t first = 0;
  for (int i = 0; i < kCifarTrainFiles; ++i) {
    const std::int64_t end = options.train * (i + 1) / kCifarTrainFiles;
    files.push_back({cifar_train_file(i + 1), Split::train, first, end - first});
    first = end;
  }
  files.push_back({kCifarTestFile, Split::test, 0, options.test});
  return files;
}

void write_file(const fs::path& name, std::span<const std::byte> bytes) {
  OutputFile file(name);
  file.write(bytes);
  file.finish();
}

void fill(const fs::path& folder, const ShapesOptions& options) {
  std::vector<std::uint8_t> bytes;
  for (const File& file : files_of(options)) {
    bytes.resize(static_cast<std::size_t>(file.count * kCifarRecordBytes));
    std::span<std::uint8_t> rest(bytes);
    for (std::int64_t i = 0; i < file.count; ++i) {
      const auto record = rest.first(kCifarRecordBytes);
      record[0] =
          static_cast<std::uint8_t>(draw_shape(options.seed, file.split, file.first + i, record.subspan(1)));
      rest = rest.subspan(kCifarRecordBytes);
    }
    write_file(folder / file.name, std::as_bytes(std::span(bytes)));
  }
  std::string names;
  for (const auto name : kShapeNames) names += std::string(name) + "\n";
  const std::string settings = settings_of(options);
  write_file(folder / "batches.meta.txt", std::as_bytes(std::span(names)));
  write_file(folder / kSettingsFile, std::as_bytes(std::span(settings)));
  sync_folder(folder);
}

// Whether the folder is there with these options. Throws when it holds something else.
bool is_made(const fs::path& folder, const ShapesOptions& options) {
  std::error_code error;
  if (!fs::exists(folder, error) || fs::is_empty(folder, error)) return false;
  const std::string wanted = settings_of(options);
  const std::string remedy = "; accepted: another folder, or this one after removing what is in it";
  if (!fs::is_regular_file(folder / kSettingsFile, error))
    throw UsageError(shown(folder) + " is there and holds no drawings (no " + kSettingsFile + ")" + remedy);
  const auto bytes = read_whole_file(folder / kSettingsFile, 4096, "the settings that were written there");
  const std::string found(bytes.begin(), bytes.end());
  const auto line = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  if (found != wanted)
    throw UsageError(shown(folder) + " was made with other settings, " + shown(line(found)) + ", not " +
                     shown(line(wanted)) + remedy);
  for (const File& file : files_of(options)) {
    const auto expected = static_cast<std::uintmax_t>(file.count * kCifarRecordBytes);
    const auto size = fs::file_size(folder / file.name, error);
    if (error || size != expected)
      throw UsageError(shown(folder / file.name) +
                       (error ? " is missing" : " has " + std::to_string(size) + " bytes") + ", " +
                       std::to_string(expected) + " bytes were written there" + remedy);
  }
  return true;
}

void remove_quietly(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

// What makers that were killed left behind. Only under the lock: nobody is making it then.
void remove_stale(const fs::path& parent, const std::string& prefix) {
  std::vector<fs::path> stale;
  std::error_code error;
  fs::directory_iterator entry(parent, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (entry->path().filename().string().starts_with(prefix)) stale.push_back(entry->path());
  for (const auto& path : stale) remove_quietly(path);
}

// Whether the lock is this process's alone. Otherwise another maker may be at it: then the first to finish
// wins.
bool take(LockFile& lock, const fs::path& folder, const ShapesOptions& options, const ShapesWait& wait) {
  const auto give_up_after = wait.give_up_after + kSlowImage * (options.train + options.test);
  const auto started = Clock::now();
  bool said = false;
  while (const auto other = lock.try_take()) {
    // Nobody waits for another user, who might hold it for ever.
    if (other->other_user || is_made(folder, options)) return false;
    const auto waited = Clock::now() - started;
    if (waited >= give_up_after)
      throw SystemError(shown(folder) + " is being made by " + other->who + ", for longer than " +
                        seconds_text(give_up_after) +
                        "; accepted: when that has ended or, where it was stopped, goes on; another folder");
    if (!said && waited >= wait.say_after) {
      log().warn("waiting for {}, which makes {}", other->who, shown(folder));
      said = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return lock.alone();
}

}  // namespace

fs::path make_shapes(const fs::path& folder, ShapesOptions options, ShapesWait wait) {
  const std::int64_t most_train = kCifarMostRecords * kCifarTrainFiles;
  if (options.train < kCifarTrainFiles || options.train > most_train || options.test < 1 ||
      options.test > kCifarMostRecords)
    throw UsageError("shapes: " + std::to_string(options.train) + " training and " +
                     std::to_string(options.test) +
                     " test images; accepted: " + std::to_string(kCifarTrainFiles) + " to " +
                     std::to_string(most_train) + " and 1 to " + std::to_string(kCifarMostRecords));
  if (is_made(folder, options)) return folder;

  std::error_code error;
  fs::path target = fs::absolute(folder).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "data/shapes/"
  const fs::path parent = target.parent_path();
  make_folder(parent);

  LockFile lock(parent / ("." + target.filename().string() + ".lock"));
  const bool alone = take(lock, folder, options, wait);
  if (is_made(folder, options)) return folder;

  // Machines that share the file system may have locks and process numbers of their own: each touches its
  // own.
  const std::string prefix = std::string(".") + target.filename().string() + ".staging-" + host_name() + "-";
  if (alone) remove_stale(parent, prefix);
  const fs::path staging = parent / (prefix + std::to_string(::getpid()));
  fs::create_directory(staging, error);
  if (error) throw SystemError("cannot make the folder " + shown(staging), error.value());
  try {
    fill(staging, options);
    fs::rename(staging, target, error);
    if (error && !is_made(folder, options))
      throw SystemError("cannot rename " + shown(staging) + " to " + shown(target), error.value());
  } catch (...) {
    remove_quietly(staging);
    throw;
  }
  if (error) remove_quietly(staging);  // another maker was first
  sync_folder(parent);
  return folder;
}

}  // namespace lockstep
