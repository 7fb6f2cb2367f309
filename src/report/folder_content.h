// What may lie in a run's folder: what Lockstep wrote, by the marks that it carries, and what it did not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// Up to `most` bytes of a plain file; nothing where it is none.
std::optional<std::string> beginning_of(const std::filesystem::path& file, std::size_t most);

// What a killed process left half made in the folder, such as ".steps.csv.4711", or the lock file.
bool is_leftover(const std::string& name);

// Nothing but leftovers.
bool is_unused(const std::filesystem::path& folder);

// A file that is called as one of a run's and that no run wrote; empty when there is none.
std::filesystem::path find_foreign_file(const std::filesystem::path& folder);

// Something that --resume may take.
bool has_checkpoint(const std::filesystem::path& folder);

// The newest of the checkpoints that lie in this folder; empty when none does.
std::filesystem::path newest_checkpoint_in(const std::filesystem::path& folder);

// Where checkpoints lie from which the run did not go on, in `checkpoints`.
inline constexpr const char* kSetAside = "set-aside";

// Moves the checkpoints of steps after `step` there: a run that went back to an older one would otherwise go
// on from them, later, with a gap. Gives their names. Throws SystemError.
std::vector<std::string> set_aside_later(const std::filesystem::path& folder, std::int64_t step);

// Removes a run: only files that Lockstep wrote, and of checkpoints/ only checkpoints. Throws UsageError,
// before anything is removed, that names a file of a run's name which is none of ours.
void remove_run(const std::filesystem::path& folder);

// Would that remove this checkpoint, however the two are spelled, by links too?
bool is_checkpoint_of(const std::filesystem::path& folder, const std::filesystem::path& checkpoint);

// Removes leftovers, also those among the checkpoints. Needs the folder's lock: nobody else is at work on
// them.
void remove_leftovers(const std::filesystem::path& folder);

}  // namespace lockstep
