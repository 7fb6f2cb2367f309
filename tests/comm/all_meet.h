// Ranks as threads that meet while one of them is busy for longer than a call may last.
#pragma once

#include "comm/patience.h"
#include "comm/thread_ranks.h"

namespace lockstep::testing {

// A call may last for `patience`, which is little. All else has to be quicker: where a rank was late, it is
// done again with more.
inline void expect_all_meet(
    std::size_t ranks, std::chrono::milliseconds patience,
    const std::function<void(const Group&, std::chrono::milliseconds patience)>& work) {
  expect_seen("met", ranks, patience, [&](std::chrono::milliseconds most, Seen& seen) {
    on_threads(thread_groups(static_cast<int>(ranks), {.timeout = most}), [&](const Group& group) {
      try {
        work(group, most);
        seen.note("met");
      } catch (const TimeoutError& late) {
        seen.note(late.what());
      } catch (const PeerError& gone) {
        seen.note(gone.what());
      }
    });
  });
}

}  // namespace lockstep::testing
