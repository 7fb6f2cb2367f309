// A rank that waits for long across a wire says so.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/repeated.h"
#include "comm/call/stall.h"
#include "comm/channel/tcp_channel.h"
#include "comm/channel/tcp_fabric.h"
#include "comm/stall_cases.h"
#include "comm/wire_cases.h"

namespace lockstep::testing {
namespace {

class WireStall : public OverWires {};

// Longer than it takes the ranks to hear of each other's waits.
constexpr double kHeardOfAfter = 1.2;

// Of the lines that `wire`'s ranks say while rank 3 is late: what is wrong with them.
std::string wrong_of_late_rank(const Wire& wire) {
  // The lowest, or, of a node where one carries all of so few elements, that one.
  const std::string who = wire.name == "TwoByTwo" ? "rank 1" : "rank 0";
  const auto lines = expect_late_rank_blamed(wire.make, 3, who, "rank 3 in");
  std::string all;
  bool right = true;
  for (const std::string& line : lines) {
    const bool same_node = line.find(" s for rank 3 (last seen in operation 1) in") != std::string::npos;
    right = right && (same_node || line.find(" s for rank 3 in") != std::string::npos);
    all += "\n" + line;
  }
  // One a node that misses a rank of its own, and one across.
  const std::size_t most = wire.nodes ? 2 : 1;
  return right && lines.size() <= most ? "" : "only rank 3 is late, which takes few lines:" + all;
}

TEST_P(WireStall, NamesTheLateRankAndTheCall) {
  expect_said_rightly(kHeardOfAfter, [] { return wrong_of_late_rank(GetParam()); });
}

TEST_P(WireStall, InAMessageNamesNoOperation) {
  // Of a rank on the same node it is known where it was.
  const std::string three = GetParam().name == "Alternating" ? "rank 3 (last seen in operation 1)" : "rank 3";
  expect_said_rightly(kHeardOfAfter, [&] { return wrong_of_late_message(GetParam().make, 1, 3, three); });
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

// What is said, other than that rank 3 is waited for, in a chain whose end it is.
std::string wrong_of_chain() {
  const LogLines lines;
  on_threads(node_groups({0, 0, 0, 1}, net::Security::plaintext), [&](const Group& world) {
    Floats x(8);
    world.barrier();
    if (world.rank() == 3) wait_for_line(lines, "rank 2 has waited", " s for rank 3 in recv(");
    if (world.rank() < 3) world.recv(buffer(x), world.rank() + 1);
    if (world.rank() > 0) world.send(buffer(x), world.rank() - 1);
  });
  for (const std::string& line : lines.with("has waited"))
    if (line.find(" s for rank 3 in recv(") == std::string::npos) return line;
  return "";
}

// And along a chain that leaves the node at its end; those before have nothing to say.
TEST(WireStallOnANode, NamesTheEndOfAChainThatLeavesIt) {
  expect_said_rightly(kHeardOfAfter, wrong_of_chain);
}

INSTANTIATE_TEST_SUITE_P(Over, WireStall, ::testing::ValuesIn(wires()), wire_name);

// A rank that says all the time that it waits for `whom`.
class Teller {
 public:
  Teller(Engine& from, int whom) : from_(from), whom_(whom) { tell(); }
  void tell() {
    const Clock::time_point now = Clock::now();
    from_.composable()->tell_waits({whom_});
    longest_ = std::max(longest_, Clock::now() - told_);
    told_ = now;
  }
  void tell_until(const std::function<bool()>& enough) {
    const auto patience = Clock::now() + std::chrono::seconds(20 * slowness());
    while (!enough() && Clock::now() < patience) {
      tell();
      std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_TRUE(enough());
  }
  // It was never silent for so long that others may have taken it for late: a notice is good for 1.5 s.
  bool steady() const { return longest_ < std::chrono::seconds(1); }

 private:
  Engine& from_;
  int whom_;
  Clock::time_point told_ = Clock::now();
  Clock::duration longest_{0};
};

// `attempt` gives whether the ranks were told in time for what it asks to be judged; a busy machine may keep
// who tells them.
void until_judged(const std::function<bool()>& attempt) {
  constexpr int kAttempts = 5;
  for (int i = 0; i < kAttempts; ++i) {
    if (attempt() || ::testing::Test::HasFailure()) return;
    say_repeated("no news for a second");
  }
  ADD_FAILURE() << "no news for a second, " << kAttempts << " times in a row";
}

// What people were told while a lower rank said that it waits: nothing. False: that rank was silent.
bool said_nothing(const LogLines& lines, Teller& teller) {
  const std::vector<std::string> said = lines.with("has waited");
  teller.tell();  // and up to now
  if (!said.empty() && !teller.steady()) return false;
  EXPECT_TRUE(said.empty()) << said.front();
  return true;
}

// Rank `waiting` of two waits for the other, which says all the time that it waits too, as many ranks would.
struct AmongNews {
  int waiting = 0;
  std::vector<std::unique_ptr<ChannelEngine>> engines =
      tcp_threads({0, 1}, net::Security::plaintext, kWirePatience);

  void run(Stall* stall, const std::function<bool()>& enough, const std::function<void(Teller&)>& then = {}) {
    Engine& one = *engines[static_cast<std::size_t>(waiting)];
    Engine& other = *engines[static_cast<std::size_t>(1 - waiting)];
    Call call;
    call.timeout = kWirePatience;
    call.sequence = 1;
    Teller teller(other, waiting);  // before anybody waits
    std::jthread waits([&, call]() mutable {
      call.stall = stall;
      one.run(call);
    });
    teller.tell_until(enough);
    if (then) then(teller);
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

// Far more notices than a connection holds are written while the other rank is in no call, so that the last
// one that went is cut, and those behind it have no room.
constexpr int kNoticesForNobody = 30'000;  // 17 MB

void expect_unread_notices_harm_nobody(net::Security security) {
  auto engines = tcp_threads({0, 1}, security, kWirePatience);
  for (int i = 0; i < kNoticesForNobody; ++i) engines[0]->composable()->tell_waits({1});
  std::atomic<int> looks = 0;
  Stall stall(milliseconds(1), [&] {
    ++looks;
    return now_ns();
  });
  Call call;
  call.what = Collective::barrier;
  call.timeout = kWirePatience;
  call.sequence = 1;
  std::atomic<bool> over = false;
  std::string why;
  std::jthread waits([&, call]() mutable {
    call.stall = &stall;
    try {
      engines[1]->run(call);
    } catch (const Error& error) {
      why = error.what();
    }
    over = true;
  });
  const auto patience = Clock::now() + std::chrono::seconds(20 * slowness());
  while (looks < 4 && !over && Clock::now() < patience) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_NO_THROW(engines[0]->run(call));
  waits.join();
  EXPECT_EQ(why, "");
}

TEST(WaitAmongNews, ThatNobodyReadForLongLosesNobody) {
  for (const auto security : {net::Security::plaintext, net::Security::tls})
    expect_unread_notices_harm_nobody(security);
}

Call receive_from(int peer, float& into, milliseconds timeout) {
  Call call;
  call.what = Collective::recv;
  call.out = &into;
  call.count = 1;
  call.root = peer;
  call.timeout = timeout;
  return call;
}

// Rank 0 waits for rank 2 and says so all the time, rank 1 waits for rank 0. False: rank 0 was silent for too
// long.
bool judged_behind_unread_notices(net::Security security) {
  auto engines = tcp_threads({0, 1, 2}, security, kWirePatience);
  Teller teller(*engines[0], 2);
  for (int i = 0; i < kNoticesForNobody; ++i) teller.tell();
  float x = 0;
  // A notice is good for 1.5 s: the old ones are too old by the end of this.
  const Call call = receive_from(0, x, std::chrono::seconds(4));
  std::atomic<bool> over = false;
  std::vector<int> missing;
  std::string why;
  std::jthread waits([&] {
    try {
      engines[1]->run(call);
    } catch (const TimeoutError& error) {
      missing = error.missing();
      why = error.what();
    } catch (const Error& error) {
      why = error.what();
    }
    over = true;
  });
  teller.tell_until([&] { return over.load(); });
  waits.join();
  if (missing != std::vector<int>{2} && !teller.steady()) return false;
  EXPECT_EQ(missing, std::vector<int>{2}) << why;
  return true;
}

TEST(WaitAmongNews, ThatNobodyReadForLongIsHeardAgain) {
  for (const auto security : {net::Security::plaintext, net::Security::tls})
    until_judged([=] { return judged_behind_unread_notices(security); });
}

// Of a rank that goes the last notice is cut on the connection of messages, and why it went never came there.
// On the connection of collectives it did.
TEST(WaitAmongNews, ThatNobodyReadForLongHidesNoFailure) {
  for (const auto security : {net::Security::plaintext, net::Security::tls}) {
    auto engines = tcp_threads({0, 1}, security, kWirePatience);
    for (int i = 0; i < kNoticesForNobody; ++i) engines[0]->composable()->tell_waits({1});
    float x = 0;
    expect_error<TimeoutError>([&] { engines[0]->run(receive_from(1, x, milliseconds(200))); }, {"rank 1"});
    engines[0].reset();
    std::vector<int> missing;
    expect_error<TimeoutError>([&] {
      try {
        engines[1]->run(receive_from(0, x, kWirePatience));
      } catch (const TimeoutError& error) {
        missing = error.missing();
        throw;
      }
    });
    EXPECT_EQ(missing, std::vector<int>{1});
  }
}

TEST(WaitAmongNews, ThatNobodyReadForLongHidesNoLeave) {
  for (const auto security : {net::Security::plaintext, net::Security::tls}) {
    auto engines = tcp_threads({0, 1}, security, kWirePatience);
    for (int i = 0; i < kNoticesForNobody; ++i) engines[0]->composable()->tell_waits({1});
    engines[0].reset();
    float x = 0;
    expect_error<PeerError>([&] { engines[1]->run(receive_from(0, x, kWirePatience)); },
                            {"rank 0 left group"});
  }
}

// A connection that its peer closed when it had said this. Whoever reads there gets no core for `pause`.
class ClosedStream final : public net::Stream {
 public:
  ClosedStream(std::vector<std::byte> said, milliseconds pause) : said_(std::move(said)), pause_(pause) {}

  int fd() const override { return -1; }
  const std::string& peer() const override { return peer_; }
  std::size_t write(std::span<const net::Bytes> /*parts*/) override {
    throw net::ConnectionLost{"closed the connection"};
  }
  std::size_t read(std::span<std::byte> into) override {
    std::this_thread::sleep_for(pause_);
    if (said_.empty()) throw net::ConnectionLost{"closed the connection"};
    const auto end = said_.begin() + static_cast<std::ptrdiff_t>(std::min(said_.size(), into.size()));
    std::copy(said_.begin(), end, into.begin());
    const auto moved = static_cast<std::size_t>(end - said_.begin());
    said_.erase(said_.begin(), end);
    return moved;
  }

 private:
  std::vector<std::byte> said_;
  milliseconds pause_;
  std::string peer_ = "a peer";
};

// What it said counts, also when the rank comes to that connection later than it waits for it.
TEST(LastWords, AreReadHoweverLate) {
  constexpr milliseconds kLate{400};
  const auto leave = write_header({.kind = FrameKind::leave, .bytes = 0, .card = {}});
  std::vector<TcpPeer> peers(2);
  peers[0].side.emplace_back(std::make_unique<ClosedStream>(std::vector<std::byte>(), kLate));
  peers[0].bulk.emplace_back(
      std::make_unique<ClosedStream>(std::vector<std::byte>(leave.begin(), leave.end()), milliseconds(0)));
  auto fabric = std::make_shared<TcpFabric>(TcpFabricOptions{
      .address = "127.0.0.1", .secret = net::Secret::make(), .security = net::Security::plaintext});
  ChannelEngine engine(
      "tcp",
      std::make_unique<TcpChannel>(std::move(fabric), "world", 1, std::vector<int>{0, 1}, std::move(peers)),
      "world", {0, 1}, Selector());
  float x = 0;
  expect_error<PeerError>([&] { engine.run(receive_from(0, x, kWirePatience)); }, {"rank 0 left group"});
}

bool judged_beside_a_lower_rank() {
  const LogLines lines;
  bool judged = false;
  std::atomic<int> looks = 0;
  Stall stall(milliseconds(1), [&] {
    ++looks;
    return now_ns();
  });
  AmongNews{.waiting = 1}.run(
      &stall, [&] { return looks >= 4; },
      [&](Teller& teller) {
        judged = said_nothing(lines, teller);
        wait_for_line(lines, "rank 1 has waited", " s for rank 0 in barrier(), operation 1 of group world");
      });
  return judged;
}

// One speaks for all: the lowest.
TEST(WaitAmongNews, SaysNothingToPeopleWhileALowerRankWaits) { until_judged(judged_beside_a_lower_rank); }

// Ranks 1 and 2 of three are a part.
bool judged_in_a_part() {
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
  Teller zero(*whole[0], 2);  // before anybody waits
  std::jthread waits([&, call]() mutable {
    call.stall = &stall;
    part[1]->run(call);
  });
  zero.tell_until([&] { return looks >= 4; });
  const bool judged = said_nothing(lines, zero);  // rank 0 says it
  Teller two(*whole[2], 0);
  const std::string blame = " s for rank 0 in barrier(), operation 2 of group world";
  two.tell_until([&] { return !lines.with(blame).empty(); });
  wait_for_line(lines, "rank 1 has waited ", blame);
  part[2]->run(call);
  return judged;
}

// A part of a group, such as the ranks that have the same place in their nodes, knows of the others' waits by
// the whole group.
TEST(WaitInAPart, CountsTheWaitsOfTheWhole) { until_judged(judged_in_a_part); }

}  // namespace
}  // namespace lockstep::testing
