// What one rank does for all while the others wait, or each for itself, however long it takes: a checkpoint
// on a slow disk.
#pragma once

#include <functional>
#include <string>

#include "lockstep/comm/group.h"

namespace lockstep {

// Runs `work` on rank 0, on a thread of its own, and returns everywhere when it is through. Meanwhile the
// ranks meet several times within LOCKSTEP_TIMEOUT_S: a slow disk is not taken for a lost rank, and a rank
// that dies is noticed at once, as in any collective (PeerError). `what` is for the log when it takes longer
// than that: "writing a checkpoint".
//
//   run_on_leader(world, "writing a checkpoint", [&] { store.write(step, fill); });
//
// Collective; the group is not to be used in `work`. What `work` throws is thrown on rank 0, and with the
// same words on the others: as a UsageError where it is one, else as a SystemError. The group stays usable.
void run_on_leader(const Group& group, const std::string& what, const std::function<void()>& work);

// The same of work that every rank has: returns when all are through. What the first of them throws is thrown
// on all.
void run_on_all(const Group& group, const std::string& what, const std::function<void()>& work);

}  // namespace lockstep
