#include "lockstep/checkpoint/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/output_file.h"
#include "checkpoint/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/staging.h"
#include "checkpoint/step_name.h"
#include "lockstep/base/error.h"
#include "lockstep/base/folder.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

// "a/b/" and "a/b" are the same folder; only the second has a file name and a parent as we mean them.
std::filesystem::path without_slash(const std::filesystem::path& path) {
  auto plain = std::filesystem::absolute(path).lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

bool is_whole(const std::filesystem::path& checkpoint) {
  try {
    return find_damage(checkpoint).empty();
  } catch (const RefusedFile&) {
    return false;  // nobody knows
  }
}

// The newest whole checkpoint beside a damaged one: before it if there is any, else after it.
std::filesystem::path find_whole_sibling(const std::filesystem::path& checkpoint) {
  std::vector<PublishedCheckpoint> found;
  try {
    found = list_checkpoints(checkpoint.parent_path());
  } catch (const SystemError&) {
    return {};  // the damage is what is to be told
  }
  std::ranges::reverse(found);
  const auto step = parse_step_name(checkpoint.filename().string());
  std::ranges::stable_partition(found, [&](const auto& other) { return step && other.step < *step; });
  for (const auto& other : found) {
    if (other.folder != checkpoint && is_whole(other.folder)) return other.folder;
  }
  return {};
}

}  // namespace

CheckpointStore::CheckpointStore(std::filesystem::path folder, int keep)
    : folder_(std::move(folder)), keep_(keep) {
  if (keep < 0) throw UsageError(fmt::format("keep = {} checkpoints; accepted: 0 (all) or more", keep));
}

// A folder that no reader looks at yet, and the right to write there.
struct CheckpointDraft::State {
  State(CheckpointStore store_, const std::filesystem::path& folder, std::int64_t step_)
      : store(std::move(store_)),
        target(folder / step_name(step_)),
        step(step_),
        lock(folder),
        staging(HiddenFolder::make_empty(folder)) {}

  CheckpointStore store;
  std::filesystem::path target;
  std::int64_t step;
  WriterLock lock;
  HiddenFolder staging;
};

CheckpointDraft::CheckpointDraft(std::unique_ptr<State> state) : state_(std::move(state)) {}
CheckpointDraft::CheckpointDraft(CheckpointDraft&&) noexcept = default;
CheckpointDraft::~CheckpointDraft() = default;

const std::filesystem::path& CheckpointDraft::folder() const { return state_->staging.path(); }

std::filesystem::path CheckpointDraft::publish(std::span<const std::string> parts) {
  State& s = *state_;
  const std::filesystem::path staging = s.staging.path();
  Manifest known;
  try {
    known = merge_parts(parts);
  } catch (const UsageError& wrong) {
    throw UsageError(std::string("the checkpoint ") + wrong.what());
  }
  write_file(staging / kManifestName, compose_manifest(describe_folder(staging, s.step, known)));
  sync_folder(staging);
  s.staging.publish(s.target);
  sync_folder(s.target.parent_path());
  s.store.prune(s.step);
  return s.target;
}

CheckpointDraft CheckpointStore::begin(std::int64_t step) const {
  if (step < 0) throw UsageError(fmt::format("a checkpoint of step {}; accepted: 0 or more", step));
  make_folder(folder_);
  return CheckpointDraft(std::make_unique<CheckpointDraft::State>(*this, folder_, step));
}

std::filesystem::path CheckpointStore::write(std::int64_t step,
                                             const std::function<void(const std::filesystem::path&)>& fill) {
  CheckpointDraft draft = begin(step);
  fill(draft.folder());
  return draft.publish();
}

void CheckpointStore::prune(std::int64_t newest_step) const {
  if (keep_ == 0) return;
  try {
    auto found = list_checkpoints(folder_);
    std::erase_if(found, [&](const auto& other) { return other.step > newest_step; });
    const auto surplus = static_cast<std::ptrdiff_t>(found.size()) - keep_;
    for (std::ptrdiff_t i = 0; i < surplus; ++i)
      HiddenFolder::take(found[static_cast<std::size_t>(i)].folder);
  } catch (const SystemError& failure) {
    // The checkpoint that was asked for is safe; one too many on disk is no reason to stop a run.
    log().warn("an old checkpoint stays: {}", failure.what());
  }
}

void CheckpointStore::sweep() const {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder_, ignored)) return;
  const WriterLock lock(folder_);
  HiddenFolder::remove_stale(folder_);
}

std::vector<std::filesystem::path> CheckpointStore::list() const {
  std::vector<std::filesystem::path> folders;
  for (auto& found : list_checkpoints(folder_)) folders.push_back(std::move(found.folder));
  return folders;
}

void write_file(const std::filesystem::path& file, std::span<const std::byte> bytes) {
  OutputFile output(file);
  output.write(bytes);
  output.finish();
}

void write_file(const std::filesystem::path& file, std::string_view text) {
  write_file(file, std::as_bytes(std::span(text)));
}

void refuse_damaged(const std::filesystem::path& checkpoint, const std::string& damage) {
  const auto folder = without_slash(checkpoint);
  const auto other = find_whole_sibling(folder);
  throw DamagedCheckpoint(fmt::format(
      "checkpoint {} is damaged: {}; {}", folder.filename().string(), damage,
      other.empty() ? "no whole checkpoint lies beside it" : "the newest whole one is " + other.string()));
}

void verify_checkpoint(const std::filesystem::path& checkpoint) {
  const auto folder = without_slash(checkpoint);
  if (const std::string damage = find_damage(folder); !damage.empty()) refuse_damaged(folder, damage);
}

void check_frame(const std::filesystem::path& checkpoint) {
  const auto folder = without_slash(checkpoint);
  if (const std::string damage = find_damage(folder, Depth::frame); !damage.empty())
    refuse_damaged(folder, damage);
}

std::filesystem::path find_checkpoint(const std::filesystem::path& path) {
  const auto folder = without_slash(path);
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
      throw SystemError("cannot look for a checkpoint at " + path.string(), error.value());
    std::string why = "there is no such folder";
    if (std::filesystem::exists(folder, error))
      why = "that is no folder; accepted: a run's, its checkpoints', or that of one checkpoint";
    else if (std::filesystem::is_symlink(folder, error))
      why =
          "it is a link to " + std::filesystem::read_symlink(folder, error).string() + ", which is not there";
    throw UsageError(fmt::format("no checkpoint at {}: {}", path.string(), why));
  }
  if (parse_step_name(folder.filename().string()) || std::filesystem::exists(folder / kManifestName, error)) {
    return folder;
  }
  for (const auto& place : {folder, folder / "checkpoints"}) {
    if (const auto found = list_checkpoints(place); !found.empty()) return found.back().folder;
  }
  throw UsageError(
      fmt::format("no checkpoint in {}; accepted: a checkpoint (…/step-00000120), a folder of checkpoints, "
                  "or a run's folder",
                  path.string()));
}

void use_checkpoint(const std::filesystem::path& path,
                    const std::function<void(const std::filesystem::path&)>& use) {
  while (true) {
    const auto checkpoint = find_checkpoint(path);
    const auto before = folder_number(checkpoint);
    try {
      check_frame(checkpoint);
      use(checkpoint);
      return;
    } catch (const Error&) {
      if (!was_removed(checkpoint, before)) throw;  // nobody took it away: it is as bad as that
    }
  }
}

std::int64_t checkpoint_step(const std::filesystem::path& checkpoint) {
  const auto step = parse_step_name(without_slash(checkpoint).filename().string());
  if (!step) {
    throw UsageError(
        fmt::format("{} is no checkpoint's name; accepted: step-00000120 and the like", checkpoint.string()));
  }
  return *step;
}

}  // namespace lockstep
