// Messages of a sub-group call its ranks by their numbers in the world, and errors carry those of the group.
#pragma once

#include <functional>
#include <latch>
#include <string>
#include <vector>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"

namespace lockstep::testing {

using MakeGroups = std::function<std::vector<Group>(std::chrono::milliseconds timeout)>;

// `make`: four ranks. Ranks 1 and 3 are group world/0.1, ranks 0 and 2 world/0.0.
inline void expect_world_ranks_in_timeouts(const MakeGroups& make) {
  std::latch done(1);
  on_threads(make(std::chrono::seconds(60)), [&](const Group& world) {
    const Group part = world.split(world.rank() % 2);
    EXPECT_EQ(part.named(0), world.rank() % 2 == 0 ? "rank 0" : "rank 1 (0 in world/0.1)");
    if (world.rank() == 3) return done.wait();
    if (world.rank() != 1) return;
    try {
      part.barrier({.timeout = std::chrono::milliseconds(400)});
      ADD_FAILURE() << "rank 3 is not there";
    } catch (const TimeoutError& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.missing(), std::vector<int>{1}) << text;
      EXPECT_NE(text.find("on rank 1 (0 in world/0.1); missing: rank 3 (1 in world/0.1)"), std::string::npos)
          << text;
    }
    done.count_down();
  });
}

inline void expect_world_ranks_of_those_that_leave(const MakeGroups& make) {
  with_own_groups(make(std::chrono::seconds(30)), [&](Group world) {
    Group part = world.split(world.rank() % 2);
    Group pair = part.split(0, -part.rank());  // in the other order, and twice removed
    if (world.rank() == 3) return;
    if (world.rank() != 1) return;
    try {
      pair.barrier();
      ADD_FAILURE() << "rank 3 is not there";
    } catch (const PeerError& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.rank(), 0) << text;
      EXPECT_NE(text.find("rank 3 (0 in world/0.1/0.0)"), std::string::npos) << text;
    }
  });
}

inline void expect_world_ranks_in_differences(const MakeGroups& make) {
  on_threads(make(std::chrono::seconds(30)), [&](const Group& world) {
    const Group part = world.split(world.rank() % 2);
    std::vector<float> x(4);
    if (world.rank() % 2 == 0) return;
    const auto call = [&] { world.rank() == 1 ? part.barrier() : part.all_reduce(buffer(x)); };
    expect_error<MismatchError>(call, {"of group world/0.1", "rank 1 (0 in world/0.1) called barrier()",
                                       "rank 3 (1 in world/0.1) called all_reduce(f32 × 4, sum)"});
  });
}

}  // namespace lockstep::testing
