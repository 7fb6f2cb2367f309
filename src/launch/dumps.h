// The flight recorders that failed workers left behind.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {

// How many folders of dumps stay in the temporary folder, where nobody named another one.
inline constexpr std::size_t kKeptDumps = 20;

// Removes the oldest folders in `temporary` that jobs left there, so that kKeptDumps stay: only this user's,
// of the names that we give, and with nothing but dumps in them.
void forget_old_dumps(const std::string& temporary);

// Fills dump_dir, dumps and dump_summary of `report` from the dumps in `folder`, if there are any of `job`,
// as its workers call it, or of no job by name: the summary of the first failing rank, else of the first
// survivor that wrote one. Where that is one of the folders of forget_old_dumps, old ones beside it go.
void find_dumps(const std::string& folder, const std::string& job, LaunchReport& report);

// Removes what workers of `job` that were told to stop wrote there: the sign that asked them to, and with
// Dumps::too their dumps, those of failures excepted.
enum class Dumps { stay, too };
void clear_stop(const std::string& folder, const std::string& job, Dumps dumps);

// By rank: whose end each worker of `job`, as its workers call it, gave as the reason of its own.
std::map<int, std::vector<int>> find_blames(const std::string& folder, const std::string& job);

}  // namespace lockstep::launcher
