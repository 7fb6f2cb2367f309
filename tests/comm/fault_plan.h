// What happens in one round of the fault test. The test and every rank work it out for themselves from the
// same two numbers, so nothing needs to be sent and a failing round can be run again.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/call/call.h"

namespace lockstep::testing {

enum class Fault : int {
  killed,      // SIGKILL from outside, at any instruction
  crashed,     // SIGSEGV, SIGABRT or SIGTERM from outside
  two_killed,  // two at once
  rank0_killed,
  killed_in_split,  // as killed, while groups are split again and again
  killed_in_init,   // while the ranks still look for each other
  died_of_itself,   // raises a signal between two calls
  exited,           // exit(3) between two calls, no group destroyed
  left,             // destroys its groups and lives on
  stopped,          // SIGSTOP past the timeout, then SIGCONT
  mismatched,       // calls something else
};
inline constexpr int kFaults = 11;
const char* to_string(Fault fault);

enum class Difference : int { operation, count, dtype, root, algorithm, order };
inline constexpr int kDifferences = 6;

struct Plan {
  std::uint64_t seed = 0;  // of this round
  int size = 2;
  Fault fault = Fault::killed;
  Difference difference = Difference::operation;  // of mismatched
  std::vector<int> victims;
  int signal = 0;                        // that ends the victims, where one does
  int at_call = 0;                       // for faults that a rank commits itself
  std::chrono::microseconds delay{0};    // for faults from outside: after all are ready
  std::size_t most_bytes = 0;            // of one buffer
  int node_size = 0;                     // LOCKSTEP_NODE_SIZE
  std::chrono::milliseconds timeout{0};  // of every call
  bool is_victim(int rank) const;
  bool ends_process() const;  // the victims are gone afterwards
};

Plan plan_of(std::uint64_t seed, int round);

// The i-th call of the round, the same on every rank.
struct PlannedCall {
  enum class On : int { world, part };
  Collective what = Collective::barrier;
  On on = On::world;
  bool asynchronous = false;
  bool private_memory = false;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t size_dice = 0;       // which share of most_bytes
  std::uint64_t root_dice = 0;       // modulo the group's size
  std::uint64_t algorithm_dice = 0;  // modulo one more than the collective has; the last: none named
};

PlannedCall call_at(const Plan& plan, int index);
// Of the split that is the plan's i-th call.
int colour_at(const Plan& plan, int index, int rank);
int key_at(const Plan& plan, int index, int rank);

// How much longer things take here than in a plain build: sanitizers.
inline constexpr int slowness() {
#if defined(__SANITIZE_THREAD__)
  return 6;
#elif defined(__SANITIZE_ADDRESS__)
  return 3;
#else
  return 1;
#endif
}

}  // namespace lockstep::testing
