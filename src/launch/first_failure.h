// Which of several failures was the cause.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {

// `ends` in the order in which the launcher saw the workers end. Survivors of a dead peer fail soon after
// it, and may even be seen before it: a dying process lets go of locks and sockets before it counts as
// ended, and a big one takes long to die. So among the failures within 100 ms of the first, one by a signal
// that a program doesn't raise against itself (SIGSEGV, SIGKILL, …) comes before an exit code, SIGABRT (what
// an uncaught error ends in), SIGPIPE and SIGTERM; otherwise the first seen is the cause. Workers that the
// launcher stopped never are.
std::optional<int> first_failure(const std::vector<WorkerEnd>& ends);

}  // namespace lockstep::launcher
