// What may lie in a run's folder: what Lockstep wrote, by the marks that it carries, and what it did not.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::cli {

// What a killed process left half made in the folder, such as ".steps.csv.4711", or the lock file.
bool is_leftover(const std::string& name);

// Nothing but leftovers.
bool is_unused(const std::filesystem::path& folder);

// Removes a run: only files that Lockstep wrote, and of checkpoints/ only checkpoints. Throws UsageError,
// before anything is removed, that names a file of a run's name which is none of ours.
void remove_run(const std::filesystem::path& folder);

// Removes leftovers, also those among the checkpoints. Needs the folder's lock: nobody else is at work on
// them.
void remove_leftovers(const std::filesystem::path& folder);

}  // namespace lockstep::cli
