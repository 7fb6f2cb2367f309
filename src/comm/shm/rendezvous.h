// How the ranks of a job on one machine find each other: over an abstract Unix socket, a name that lives in
// the kernel only as long as rank 0 listens. No port, no file, nothing to clean up. Rank 0 makes the arena
// and hands it to the others, along with a pidfd of everybody.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/call/rank_names.h"
#include "comm/shm/arena.h"
#include "lockstep/base/fd.h"

namespace lockstep::shm {

struct Meet {
  std::string door;             // the same text on every rank; who can guess it can stand in the way
  std::string job;              // for people
  std::string call = "init()";  // whose callers meet, for people
  int rank = 0;
  int size = 1;
  RankNames names = {};  // what the ranks are called; none: by their numbers
  ArenaShape shape;
  std::chrono::milliseconds timeout{0};
  std::chrono::milliseconds warn_after{0};  // then it is said who has not come; zero: never
};

struct Met {
  UniqueFd arena;
  std::vector<UniqueFd> pidfds;  // by rank; the own one is empty
  int cores = 1;                 // processors that the ranks may run on, together
};

// Throws UsageError when ranks contradict each other (two alike, different sizes), TimeoutError naming who
// did not come, PeerError when one went while others waited.
Met rendezvous(const Meet& meet);

}  // namespace lockstep::shm
