// Ranks that don't come are named, and not those that wait for them; ranks that go are named where they are
// needed and disturb nobody else.
#include <algorithm>
#include <barrier>
#include <future>
#include <latch>

#include "comm/patience.h"
#include "comm/wire_cases.h"

namespace lockstep::testing {
namespace {

constexpr milliseconds kShort{300 * slowness()};
// Across nodes whoever misses a rank of its own node speaks first.
constexpr milliseconds kGrace{2500};

struct Operation {
  const char* name;
  std::function<void(const Group&, Floats&, Floats&)> call;
};

std::vector<Operation> operations() {
  const auto with = [](const char* algorithm) {
    return [algorithm](const Group& g, Floats& x, Floats&) {
      g.all_reduce(buffer(x), {.algorithm = algorithm});
    };
  };
  return {{"all_reduce", with("")},
          {"all_reduce by ring", with("ring")},
          {"all_reduce by tree", with("tree")},
          {"all_reduce by halving-doubling", with("halving-doubling")},
          {"all_reduce by pairwise", with("pairwise")},
          {"all_reduce by doubling", with("doubling")},
          {"all_reduce by hierarchical", with("hierarchical")},
          {"barrier", [](const Group& g, Floats&, Floats&) { g.barrier(); }},
          {"nothing", [](const Group& g, Floats&, Floats&) { g.all_reduce(Buffer{}); }},
          {"split", [](const Group& g, Floats&, Floats&) { (void)g.split(0); }},
          {"all_gather", [](const Group& g, Floats& x, Floats& y) { g.all_gather(buffer(x), buffer(y)); }},
          {"all_to_all", [](const Group& g, Floats& x, Floats& y) {
             g.all_to_all(buffer(x), Buffer{y.data(), x.size(), DType::f32});
           }}};
}

class WireTimeout : public OverWires {};

void wait_without(int missing, const Wire& wire, const Operation& operation, milliseconds patience,
                  Seen& seen) {
  const milliseconds most = patience + kGrace * (wire.nodes ? 1 : 0) + milliseconds(1000 * slowness());
  std::latch done(3);
  on_threads(wire.make(patience), [&](const Group& g) {
    SCOPED_TRACE(std::string(operation.name) + " without rank " + std::to_string(missing) +
                 ", seen by rank " + std::to_string(g.rank()));
    Floats x(64);
    Floats y(256);
    std::vector<int> named;
    std::string line;
    g.barrier({.timeout = kPatient});
    if (g.rank() == missing) return done.wait();
    const auto took = time_of([&] {
      try {
        operation.call(g, x, y);
        g.barrier();
        ADD_FAILURE() << "got through";
      } catch (const TimeoutError& error) {
        named = error.missing();
        line = error.what();
      }
    });
    // Too soon, too: one that is late itself is told at once.
    const bool in_time = took >= patience / 2 && took < most;
    seen.note(named, in_time ? "" : " after " + std::to_string(took.count()) + " ms");
    for (const int rank : named)
      EXPECT_NE(line.find("rank " + std::to_string(rank)), std::string::npos) << line;
    EXPECT_EQ(expect_error<TimeoutError>([&] { g.barrier(); }), line);
    done.count_down();
  });
}

void expect_missing_is_named(const Wire& wire, const Operation& operation, int missing) {
  expect_seen(std::to_string(missing), 3, kShort, [&](milliseconds patience, Seen& seen) {
    wait_without(missing, wire, operation, patience, seen);
  });
}

// Each is mostly waiting: some at a time.
TEST_P(WireTimeout, NamesTheRankThatIsMissing) {
  constexpr std::size_t kAtATime = 4;
  const std::vector<Operation> all = operations();
  for (std::size_t begin = 0; begin < all.size() && !HasFailure(); begin += kAtATime) {
    std::vector<std::future<void>> some;
    for (std::size_t i = begin; i < std::min(begin + kAtATime, all.size()); ++i)
      some.push_back(std::async(std::launch::async, [&all, i] {
        expect_missing_is_named(GetParam(), all[i], static_cast<int>(i % 4));
      }));
    for (auto& one : some) one.get();
  }
}

class WirePeer : public OverWires {};

void go_on_without(int leaver, const Wire& wire, const Operation& operation, std::atomic<bool>& late) {
  std::barrier before(4);
  with_own_groups(wire.make(kPatient), [&](Group g) {
    SCOPED_TRACE(std::string(operation.name) + " after rank " + std::to_string(leaver) +
                 " left, seen by rank " + std::to_string(g.rank()));
    Floats x(64);
    Floats y(256);
    g.barrier();
    before.arrive_and_wait();  // or the news would reach slow ranks there
    if (g.rank() == leaver) return;
    const auto took = time_of([&] {
      try {
        operation.call(g, x, y);
        g.barrier();
        ADD_FAILURE() << "got through";
      } catch (const PeerError& error) {
        EXPECT_EQ(error.rank(), leaver) << error.what();
        EXPECT_NE(std::string(error.what()).find(" left group world"), std::string::npos) << error.what();
      }
    });
    if (took >= kTold) late = true;
    expect_error<PeerError>([&] { g.barrier(); }, {"rank " + std::to_string(leaver)});
  });
}

TEST_P(WirePeer, ThatLeftIsNamed) {
  for (const Operation& operation : operations())
    for (const int leaver : {0, 1, 3}) {
      SCOPED_TRACE(std::string(operation.name) + " after rank " + std::to_string(leaver) + " left");
      expect_told_soon([&](std::atomic<bool>& late) { go_on_without(leaver, GetParam(), operation, late); });
      if (HasFailure()) return;
    }
}

// What a peer did before it left still counts, also messages that nobody has received yet.
TEST_P(WirePeer, ThatLeftAfterTheLastCallDisturbsNobody) {
  for (int round = 0; round < 8; ++round) {
    with_own_groups(GetParam().make(kPatient), [&](Group g) {
      Floats x(3000, static_cast<float>(g.rank()));
      if (g.rank() == 3) g.send(buffer(x), 0);
      Floats sum = x;
      if (g.rank() == 1 && round % 4 == 0) std::this_thread::sleep_for(milliseconds(300));
      g.all_reduce(buffer(sum));
      EXPECT_EQ(sum.back(), 6);
      if (g.rank() == 1 && round % 4 == 1) std::this_thread::sleep_for(milliseconds(300));
      if (g.rank() > 1) return;
      if (g.rank() == 0) g.recv(buffer(x), 1);
      if (g.rank() == 1) g.send(buffer(x), 0);
      if (g.rank() == 0) {
        EXPECT_EQ(x.back(), 1);
        g.recv(buffer(x), 3);
        EXPECT_EQ(x.back(), 3);
      }
    });
    if (HasFailure()) return;
  }
}

// Those who still need each other go on.
TEST_P(WirePeer, GroupsWithoutTheLeaverGoOn) {
  with_own_groups(GetParam().make(kPatient), [&](Group g) {
    const Group three = g.split(g.rank() == 2 ? -1 : 0);
    const int rank = g.rank();
    if (rank == 2) return;
    for (int i = 0; i < 20; ++i) {
      Floats x(50'000, static_cast<float>(i));
      three.all_reduce(buffer(x));
      ASSERT_EQ(x.back(), static_cast<float>(3 * i));
    }
    expect_error<PeerError>([&] { g.barrier(); }, {"rank 2 left group world"});
    expect_usable(three);
  });
}

INSTANTIATE_TEST_SUITE_P(Over, WireTimeout, ::testing::ValuesIn(wires()), wire_name);
INSTANTIATE_TEST_SUITE_P(Over, WirePeer, ::testing::ValuesIn(wires()), wire_name);

}  // namespace
}  // namespace lockstep::testing
