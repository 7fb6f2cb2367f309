// A rank that waits for long says so.
#include "comm/call/stall.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

#include "comm/control_block.h"
#include "comm/shm/meeting.h"
#include "comm/shm/rendezvous.h"
#include "comm/stall_cases.h"
#include "lockstep/observe/flight_dump.h"
#include "lockstep/observe/stop_sign.h"

namespace lockstep::testing {
namespace {

std::vector<Group> four_ranks(std::chrono::milliseconds timeout) {
  return thread_groups(4, {.timeout = timeout});
}

TEST(Stall, NamesTheLateRankAndTheCall) {
  const WarnAfter soon("0.3");
  expect_late_rank_blamed(four_ranks, 2, "rank 0", "rank 2 (last seen in operation 1) in");
  expect_late_rank_blamed(four_ranks, 0, "rank 1", "rank 0 (last seen in operation 1) in");
}

// A job of `size` whose rank `late` comes to init() when `who` has said that it waits for `whom`.
void expect_late_worker_blamed(int size, int late, const std::string& who, const std::string& whom) {
  const LogLines lines;
  const std::string door =
      "stall_test/" + std::to_string(::getpid()) + "/" + std::to_string(size) + "/" + std::to_string(late);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      if (rank == late) wait_for_line(lines, who + " has waited ", " s for " + whom + " in init()");
      shm::rendezvous({.door = door,
                       .job = "stall_test",
                       .rank = rank,
                       .size = size,
                       .shape = {.ranks = size, .head_bytes = 4096, .region_bytes = 4096},
                       .timeout = std::chrono::seconds(60),
                       .warn_after = std::chrono::milliseconds(300)});
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Stall, NamesTheRankThatDoesNotComeToInit) {
  expect_late_worker_blamed(3, 2, "rank 0", "rank 2");
  expect_late_worker_blamed(3, 0, "rank 2", "rank 0");
}

// Each waits for the next, and the last for one that is late: that one is to be named.
TEST(Stall, NamesTheEndOfTheChain) {
  const WarnAfter soon("0.3");
  const LogLines lines;
  on_threads(four_ranks(std::chrono::seconds(60)), [&](const Group& world) {
    std::vector<float> x(8);
    world.barrier();
    if (world.rank() == 3)
      wait_for_line(lines, "rank 0 has waited", " s for rank 3 (last seen in operation 1) in recv(");
    if (world.rank() < 3) world.recv(buffer(x), world.rank() + 1);
    if (world.rank() > 0) world.send(buffer(x), world.rank() - 1);
  });
}

// Messages have no number: whom one waits for is inside none of the same, and was last seen in a collective.
TEST(Stall, InAMessageSaysWhereTheOtherWasSeen) {
  expect_said_rightly(
      0.3, [] { return wrong_of_late_message(four_ranks, 0, 1, "rank 1 (last seen in operation 1)"); });
}

// A clock that counts how often it is looked at, which a wait that goes on does at each of its looks.
struct LookedAt {
  std::atomic<int> looks = 0;
  std::function<std::int64_t()> of(std::function<std::int64_t()> now) {
    return [this, now = std::move(now)] {
      ++looks;
      return now();
    };
  }
  // Until the wait has looked so often from now on, and drawn its conclusions but for the last time.
  void wait_for_more(int count) const {
    const int before = looks;
    const auto patience = Clock::now() + std::chrono::seconds(20 * slowness());
    while (looks < before + count && Clock::now() < patience)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_GE(looks, before + count);
  }
};

Call fifth_barrier(Stall* stall) {
  Call call;
  call.timeout = std::chrono::seconds(60);
  call.sequence = 5;
  call.stall = stall;
  return call;
}

void meet(shm::Meeting& meeting, const Call& call) {
  meeting.begin(call);
  meeting.barrier();
  meeting.end();
}

// Not by each of those that wait.
TEST(Stall, IsSaidByTheLowestThatWaits) {
  const LogLines lines;
  ControlBlock block(3);
  shm::Meeting zero(block.control(), "world", 0, 3), one(block.control(), "world", 1, 3),
      two(block.control(), "world", 2, 3);
  LookedAt clock;
  Stall stall(std::chrono::milliseconds(1), clock.of(now_ns));
  const Call call = fifth_barrier(nullptr), watched = fifth_barrier(&stall);
  auto& says = zero.own_seat();  // rank 0 has said that it waits for rank 2, and goes on saying so
  says.waits_for[RankMask::word(2)].store(RankMask::bit(2));
  says.waiting_ns.store(INT64_MAX);
  std::jthread waiting([&] { meet(one, watched); });
  clock.wait_for_more(5);
  EXPECT_TRUE(lines.with("has waited").empty()) << lines.with("has waited").front();
  says.waiting_ns.store(0);
  wait_for_line(lines, "rank 1 has waited", "barrier(), operation 5 of group world");
  std::jthread comes([&] { meet(zero, call); });
  meet(two, call);
}

// Looked at twenty times a second for ten.
TEST(Stall, IsSaidEverMoreRarely) {
  const LogLines lines;
  std::int64_t ms = 0;
  Stall stall(std::chrono::milliseconds(500), [&] { return ms * 1'000'000; });
  const auto wait_from = [&](std::int64_t begin) {
    for (ms = begin; ms <= begin + 10'000; ms += 50)
      if (stall.due(begin * 1'000'000)) stall.say({.who = "rank 0", .whom = "rank 1", .where = "barrier()"});
  };
  wait_from(1000);
  wait_from(20'000);  // another wait begins anew
  std::vector<std::string> expected;
  for (int wait = 0; wait < 2; ++wait)
    for (const char* seconds : {"0.5", "1.0", "2.0", "4.0", "8.0"})
      expected.push_back(std::string("rank 0 has waited ") + seconds + " s for rank 1 in barrier()");
  EXPECT_EQ(lines.take(), expected);
}

TEST(Stall, ZeroIsNever) {
  const WarnAfter never("0");
  const LogLines lines;
  on_threads(thread_groups(2), [&](const Group& world) {
    world.barrier();
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    world.barrier();
  });
  EXPECT_TRUE(lines.take().empty());
}

// Each wait is short, all of them together are not.
TEST(Stall, IsNoStallWhilePeersCome) {
  const LogLines lines;
  ControlBlock block(2);
  shm::Meeting zero(block.control(), "world", 0, 2), one(block.control(), "world", 1, 2);
  std::atomic<std::int64_t> time = 0;
  LookedAt clock;
  Stall stall(std::chrono::hours(1), clock.of([&] { return time.load(); }));
  const Call call = fifth_barrier(nullptr), watched = fifth_barrier(&stall);
  std::latch second(1);
  std::jthread waiting([&] {
    meet(zero, watched);
    // A moment before an hour is over since now, and so more than an hour since the first wait.
    time = now_ns() + std::chrono::nanoseconds(std::chrono::hours(1)).count() - 1;
    second.count_down();
    meet(zero, watched);
  });
  clock.wait_for_more(2);  // the first wait lasts
  meet(one, call);
  second.wait();
  clock.wait_for_more(3);
  EXPECT_TRUE(lines.with("has waited").empty()) << lines.with("has waited").front();
  time = now_ns() + std::chrono::nanoseconds(std::chrono::hours(3)).count();
  wait_for_line(lines, "rank 0 has waited", " s for rank 1 ");
  meet(one, call);
}

// A folder for dumps while it lives; no other thread runs when it begins and ends.
class DumpFolder {
 public:
  DumpFolder() {
    std::filesystem::create_directories(path);
    ::setenv("LOCKSTEP_DUMP_DIR", path.c_str(), 1);
  }
  ~DumpFolder() {
    ::unsetenv("LOCKSTEP_DUMP_DIR");
    std::filesystem::remove_all(path);
  }
  DumpFolder(const DumpFolder&) = delete;
  DumpFolder& operator=(const DumpFolder&) = delete;

  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("lockstep-stall-" + std::to_string(::getpid()));
};

void wait_for_file(const std::filesystem::path& path) {
  const auto patience = Clock::now() + std::chrono::seconds(20 * slowness());
  while (!std::filesystem::exists(path) && Clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

// The launcher asks by a file, which only those that have waited for a while look for.
TEST(Stall, WritesADumpWhenTheJobIsToldToStop) {
  const DumpFolder folder;
  const std::filesystem::path dump = folder.path / "flight-world-rank0.json";
  on_threads(thread_groups(2), [&](const Group& world) {
    world.barrier();
    if (world.rank() == 1) {
      std::ofstream(stop_sign(folder.path, "threads")).put('\n');
      wait_for_file(dump);
    }
    world.barrier();  // and nothing has failed
  });
  const FlightDump written = read_flight_dump(dump);
  EXPECT_FALSE(written.error_kind);
  EXPECT_EQ(written.world_rank, 0);
  const std::string line = summary(written).front();
  EXPECT_NE(line.find("operation 2 of group world: rank 0 waits in barrier() for"), std::string::npos)
      << line;
  EXPECT_NE(line.find("rank 1 is at operation 1"), std::string::npos) << line;
  EXPECT_FALSE(std::filesystem::exists(folder.path / "flight-world-rank1.json"));
}

// Who reads dumps of several groups needs one number for a rank.
TEST(Stall, TheDumpOfASubGroupNamesWorldRanks) {
  const DumpFolder folder;
  const std::filesystem::path dump = folder.path / "flight-world.0.1-rank0.json";
  std::optional<FlightDump> waited;
  with_own_groups(four_ranks(std::chrono::seconds(60)), [&](Group world) {
    Group part = world.split(world.rank() % 2);
    if (world.rank() == 3) {
      std::ofstream(stop_sign(folder.path, "threads")).put('\n');
      wait_for_file(dump);
      waited = read_flight_dump(dump);
    }
    if (world.rank() == 1) expect_error<PeerError>([&] { part.barrier(); }, {"rank 3 (1 in world/0.1) left"});
  });
  ASSERT_TRUE(waited);
  EXPECT_EQ(waited->rank, 0);
  EXPECT_EQ(waited->world_rank, 1);
  EXPECT_FALSE(waited->error_kind);
  const FlightDump failed = read_flight_dump(dump);
  EXPECT_EQ(failed.world_rank, 1);
  EXPECT_EQ(failed.gone, std::vector<int>{3});
}

// A rank that has just begun to wait has nothing to tell; one that has tells it once.
TEST(Stall, LooksForTheSignAfterASecondAndFindsItOnce) {
  const DumpFolder folder;
  std::int64_t ms = 0;
  std::vector<std::int64_t> dumped;
  Stall stall(std::chrono::milliseconds(0), [&] { return ms * 1'000'000; });
  stall.on_stop(folder.path / "sign", [&] { dumped.push_back(ms); });
  const auto wait_from = [&](std::int64_t begin) {
    for (ms = begin; ms < begin + 3000; ms += 10) stall.look_for_stop(begin * 1'000'000);
  };
  wait_from(1000);
  EXPECT_TRUE(dumped.empty()) << "there is no sign yet";
  std::ofstream(folder.path / "sign").put('\n');
  wait_from(5000);
  wait_from(9000);
  EXPECT_EQ(dumped, std::vector<std::int64_t>{6000});
}

TEST(Stall, PurposeIsInTimeoutsToo) {
  std::latch done(1);
  on_threads(thread_groups(2), [&](const Group& world) {
    if (world.rank() == 1) return done.wait();
    expect_error<TimeoutError>(
        [&] {
          world.barrier({.timeout = std::chrono::milliseconds(200), .purpose = "the end of the epoch"});
        },
        {"operation 1 of group world, the end of the epoch: no answer within 0.2 s"});
    done.count_down();
  });
}

}  // namespace
}  // namespace lockstep::testing
