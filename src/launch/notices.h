// What a launcher says while the job runs, in one line each.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {

// Whoever pressed Ctrl-C knows that it was heard, and what a second one would do.
std::string stop_notice(int signal, int running, std::chrono::milliseconds grace);

inline constexpr std::chrono::seconds kEarlyEnd{5};  // that a worker may end before the others

// Programs may end at different times, but the others may also wait for one that is gone. `ends`: of the
// workers on this machine that have ended, the first of them kEarlyEnd ago. Empty: there is nothing to say.
std::string early_end_notice(const std::vector<WorkerEnd>& ends, int running, bool several_machines);

}  // namespace lockstep::launcher
