// A rank that waits for long across a wire says so.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "comm/call/stall.h"
#include "comm/stall_cases.h"
#include "comm/wire_cases.h"

namespace lockstep::testing {
namespace {

class WireStall : public OverWires {};

// Longer than it takes the ranks to hear of each other's waits.
TEST_P(WireStall, NamesTheLateRankAndTheCall) {
  const Variable soon("LOCKSTEP_WARN_AFTER_S", "1.2");
  // The lowest, or, of a node where one carries all of so few elements, that one.
  const std::string who = GetParam().name == "TwoByTwo" ? "rank 1" : "rank 0";
  const auto lines = expect_late_rank_blamed(GetParam().make, 3, who, "rank 3 in");
  for (const std::string& line : lines) {
    const bool same_node = line.find(" s for rank 3 (last seen in operation 1) in") != std::string::npos;
    EXPECT_TRUE(same_node || line.find(" s for rank 3 in") != std::string::npos) << line;
  }
  // One a node that misses a rank of its own, and one across.
  EXPECT_LE(lines.size(), GetParam().nodes ? 2U : 1U);
}

TEST_P(WireStall, InAMessageNamesNoOperation) {
  const Variable soon("LOCKSTEP_WARN_AFTER_S", "1.2");
  // Of a rank on the same node it is known where it was.
  const bool same_node = GetParam().name == "Alternating";
  expect_late_message_blamed(GetParam().make, 1, 3,
                             same_node ? "rank 3 (last seen in operation 1)" : "rank 3");
}

// One that waits across is no lower rank that would speak for a wait on the node.
TEST(WireStallOnANode, IsSaidBesideOneAcross) {
  const Variable soon("LOCKSTEP_WARN_AFTER_S", "0.3");
  const LogLines lines;
  on_threads(node_groups({0, 0, 0, 1}, net::Security::plaintext), [&](const Group& world) {
    Floats x(8);
    world.barrier();
    if (world.rank() < 2) return world.recv(buffer(x), 3 - world.rank());
    wait_for_line(lines, "rank 0 has waited", " s for rank 3 in recv(");
    wait_for_line(lines, "rank 1 has waited", " s for rank 2 (last seen in operation 1) in recv(");
    world.send(buffer(x), 3 - world.rank());
  });
}

// Of two on a node one waits for the other, which waits for another node: that one speaks, though it is the
// higher.
TEST(WireStallOnANode, IsSaidByTheOneThatWaitsAcross) {
  const Variable soon("LOCKSTEP_WARN_AFTER_S", "0.3");
  const LogLines lines;
  on_threads(node_groups({0, 0, 1, 1}, net::Security::plaintext), [&](const Group& world) {
    Floats x(8);  // so few that one rank a node carries them
    world.barrier();
    if (world.rank() >= 2) wait_for_line(lines, "rank 1 has waited", " s for rank 3 in all_reduce(");
    world.all_reduce(buffer(x));
  });
}

// And along a chain that leaves the node at its end; those before have nothing to say.
TEST(WireStallOnANode, NamesTheEndOfAChainThatLeavesIt) {
  const Variable soon("LOCKSTEP_WARN_AFTER_S", "1.2");
  const LogLines lines;
  on_threads(node_groups({0, 0, 0, 1}, net::Security::plaintext), [&](const Group& world) {
    Floats x(8);
    world.barrier();
    if (world.rank() == 3) wait_for_line(lines, "rank 2 has waited", " s for rank 3 in recv(");
    if (world.rank() < 3) world.recv(buffer(x), world.rank() + 1);
    if (world.rank() > 0) world.send(buffer(x), world.rank() - 1);
  });
  for (const std::string& line : lines.with("has waited"))
    EXPECT_NE(line.find(" s for rank 3 in recv("), std::string::npos) << line;
}

INSTANTIATE_TEST_SUITE_P(Over, WireStall, ::testing::ValuesIn(wires()), wire_name);

// Rank `waiting` of two waits for the other, which says all the time that it waits too, as many ranks would.
struct AmongNews {
  int waiting = 0;
  std::vector<std::unique_ptr<ChannelEngine>> engines =
      tcp_threads({0, 1}, net::Security::plaintext, kWirePatience);

  void run(Stall* stall, const std::function<bool()>& enough, const std::function<void()>& then = {}) {
    Engine& one = *engines[static_cast<std::size_t>(waiting)];
    Engine& other = *engines[static_cast<std::size_t>(1 - waiting)];
    Call call;
    call.timeout = kWirePatience;
    call.sequence = 1;
    std::jthread waits([&, call]() mutable {
      call.stall = stall;
      one.run(call);
    });
    const auto patience = Clock::now() + std::chrono::seconds(20 * slowness());
    while (!enough() && Clock::now() < patience) {
      other.composable()->tell_waits({waiting});
      std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_TRUE(enough());
    if (then) then();
    other.run(call);
  }
};

TEST(WaitAmongNews, SeesTheSignToStop) {
  const std::filesystem::path sign =
      std::filesystem::temp_directory_path() / ("lockstep-news-" + std::to_string(::getpid()));
  std::ofstream(sign).put('\n');
  std::atomic<bool> seen = false;
  Stall stall(milliseconds(0));
  stall.on_stop(sign, [&] { seen = true; });
  AmongNews().run(&stall, [&] { return seen.load(); });
  std::filesystem::remove(sign);
}

// The node's others would take it for the one that is late if it did not say that it waits.
TEST(WaitAmongNews, SaysOftenThatItWaits) {
  AmongNews two;
  std::atomic<std::size_t> count = 0;
  std::vector<Clock::time_point> said;
  two.engines[0]->composable()->watch(nullptr, [&] {
    said.push_back(Clock::now());
    count = said.size();
  });
  two.run(nullptr, [&] { return count >= 12; });
  std::vector<Clock::duration> gaps;
  for (std::size_t i = 1; i < said.size(); ++i) gaps.push_back(said[i] - said[i - 1]);
  std::sort(gaps.begin(), gaps.end());
  EXPECT_LT(gaps[gaps.size() / 2], milliseconds(200)) << "what a word of it is good for";
}

// One speaks for all: the lowest.
TEST(WaitAmongNews, SaysNothingToPeopleWhileALowerRankWaits) {
  const LogLines lines;
  std::atomic<int> looks = 0;
  Stall stall(milliseconds(1), [&] {
    ++looks;
    return now_ns();
  });
  AmongNews{.waiting = 1}.run(
      &stall, [&] { return looks >= 4; },
      [&] {
        EXPECT_TRUE(lines.with("has waited").empty()) << lines.with("has waited").front();
        wait_for_line(lines, "rank 1 has waited", " s for rank 0 in barrier(), operation 1 of group world");
      });
}

// A part of a group, such as the ranks that have the same place in their nodes, knows of the others' waits by
// the whole group: ranks 1 and 2 of three are the part.
TEST(WaitInAPart, CountsTheWaitsOfTheWhole) {
  const LogLines lines;
  auto whole = tcp_threads({0, 1, 2}, net::Security::plaintext, kWirePatience);
  std::vector<std::unique_ptr<Engine>> part(3);
  Call call;
  call.timeout = kWirePatience;
  call.sequence = 1;
  {
    std::vector<std::jthread> ranks;
    for (std::size_t r = 0; r < 3; ++r)
      ranks.emplace_back([&, r] {
        Call split = call;
        split.what = Collective::split;
        part[r] = whole[r]->split(r == 0 ? -1 : 0, 0, "world/part", split);
      });
  }
  part[1]->call_ranks(whole[1]->rank_names().part({1, 2}));
  part[1]->composable()->watch(whole[1].get(), {});
  call.sequence = 2;
  whole[1]->announce(call);
  std::atomic<int> looks = 0;
  Stall stall(milliseconds(1), [&] {
    ++looks;
    return now_ns();
  });
  std::jthread waits([&, call]() mutable {
    call.stall = &stall;
    part[1]->run(call);
  });
  const auto tell_until = [](Engine& engine, int whom, const std::function<bool()>& enough) {
    const auto patience = Clock::now() + std::chrono::seconds(20 * slowness());
    while (!enough() && Clock::now() < patience) {
      engine.composable()->tell_waits({whom});
      std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_TRUE(enough());
  };
  const auto said = [&] { return lines.with("has waited"); };
  tell_until(*whole[0], 2, [&] { return looks >= 4; });
  EXPECT_TRUE(said().empty()) << said().front();  // rank 0 says it
  tell_until(*whole[2], 0, [&] { return !said().empty(); });
  wait_for_line(lines, "rank 1 has waited ", " s for rank 0 in barrier(), operation 2 of group world");
  part[2]->run(call);
}

}  // namespace
}  // namespace lockstep::testing
