#include "checkpoint/staging.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/seconds_text.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr const char* kStaging = ".staging";
constexpr const char* kRemoved = ".removed-";

void remove_quietly(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

void rename_or_throw(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw SystemError("cannot rename " + from.string() + " to " + to.string(), errno);
  }
}

std::filesystem::path removed_name(const std::filesystem::path& published) {
  return published.parent_path() / (kRemoved + published.filename().string());
}

}  // namespace

WriterLock::WriterLock(const std::filesystem::path& folder, std::chrono::milliseconds patience)
    : lock_(folder / kName) {
  for (const auto deadline = Deadline::after(patience); const auto other = lock_.try_take();) {
    if (deadline.passed()) {
      throw SystemError("checkpoints in " + folder.string() + " are being written by " + other->who +
                        ", for longer than " + seconds_text(patience) +
                        "; accepted: another folder for this run, or when that has ended");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

HiddenFolder::HiddenFolder(std::filesystem::path path) : path_(std::move(path)) {}

HiddenFolder::~HiddenFolder() {
  if (!path_.empty()) remove_quietly(path_);
}

void HiddenFolder::remove_stale(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> stale;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name == kStaging || name.starts_with(kRemoved)) stale.push_back(at->path());
  }
  if (error) throw SystemError("cannot list " + folder.string(), error.value());
  for (const auto& path : stale) remove_quietly(path);
}

HiddenFolder HiddenFolder::make_empty(const std::filesystem::path& folder) {
  remove_stale(folder);
  auto path = folder / kStaging;
  if (::mkdir(path.c_str(), 0777) != 0) throw SystemError("cannot create the folder " + path.string(), errno);
  return HiddenFolder(std::move(path));
}

HiddenFolder HiddenFolder::take(const std::filesystem::path& published) {
  auto path = removed_name(published);
  remove_quietly(path);
  rename_or_throw(published, path);
  return HiddenFolder(std::move(path));
}

void HiddenFolder::publish(const std::filesystem::path& target) {
  if (::rename(path_.c_str(), target.c_str()) == 0) {
    path_.clear();
    return;
  }
  if (errno != EEXIST && errno != ENOTEMPTY) {
    throw SystemError("cannot rename " + path_.string() + " to " + target.string(), errno);
  }
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) {
    throw SystemError("cannot exchange " + path_.string() + " and " + target.string(), errno);
  }
  // A file system without exchange (NFS): between the two renames neither has the public name, so a process
  // killed there loses this step's checkpoint; those before it stay.
  const HiddenFolder old = take(target);
  rename_or_throw(path_, target);
  path_.clear();
}

}  // namespace lockstep
