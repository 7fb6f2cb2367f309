// What several threads of one rank do with its place in a group: the own one, and the one that watches peers.
#include "comm/shm/meeting.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <numeric>
#include <optional>
#include <thread>

#include "base/repeated.h"
#include "comm/control_block.h"
#include "comm/expect_error.h"
#include "comm/world/local_world.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/knobs.h"

namespace lockstep::testing {
namespace {

TEST(Meeting, RanksMayGetTheirNamesWhileAPeerDies) {
  ControlBlock block(3);
  shm::Meeting meeting(block.control(), "world", 0, 3);
  std::vector<int> everybody(40);
  std::iota(everybody.begin(), everybody.end(), 0);
  const RankNames whole("world", everybody);
  std::jthread watch([&] {
    for (int i = 0; i < 1000; ++i) meeting.peer_died(2);
  });
  for (int i = 0; i < 1000; ++i) meeting.naming()->set(whole.part({10 + i % 2, 20, 30 + i % 2}));
  watch.join();
  try {
    meeting.check();
    ADD_FAILURE() << "the group should have failed";
  } catch (const PeerError& error) {
    EXPECT_TRUE(error.rank() == 2 || error.rank() == 30 || error.rank() == 31) << error.what();
  }
}

// Rank 1 of the session dies; then a group is made of both, in which they are ranks 3 and 7 of the world.
TEST(ShmEngine, AMemberThatIsDeadAlreadyIsNamedAsInTheWorld) {
  const shm::ArenaShape shape = shm::arena_shape(2, std::uint64_t{64} << 20);
  auto session = std::make_shared<shm::Session>(
      std::make_shared<shm::Arena>(shm::Arena::create(shape), shape), std::vector<int>{0, 0}, 1);
  const auto engine_over = [&](shm::Control& control, const RankNames& names) {
    return std::make_unique<ShmEngine>(session, std::shared_ptr<shm::Control>(session, &control), names, 0,
                                       std::vector<int>{0, 1});
  };
  auto& head = *reinterpret_cast<shm::Control*>(session->arena().at(0));
  const auto first = engine_over(head, RankNames::plain("world", 2));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  std::vector<UniqueFd> pidfds(2);
  pidfds[1].reset(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  session->watch(std::move(pidfds));
  const auto failed = [](Engine& engine) {
    try {
      engine.check(Engine::News::known);
      return false;
    } catch (const PeerError&) {
      return true;
    }
  };
  while (!failed(*first)) std::this_thread::yield();
  const auto part = engine_over(session->make_block(0, 2), RankNames("world/0.1", {3, 7}));
  expect_error<PeerError>([&] { part->check(Engine::News::known); }, {"rank 7 (1 in world/0.1) of group"});
  ::waitpid(child, nullptr, 0);
}

// The library's own calls have no number: nobody is seen to be inside one.
TEST(Meeting, WhoMissesACallWithoutANumberIsNotSaidToBeInside) {
  ControlBlock block(2);
  shm::Meeting meeting(block.control(), "world", 0, 2);
  Call call;
  call.timeout = std::chrono::milliseconds(1);
  meeting.begin(call);
  try {
    meeting.barrier();
    ADD_FAILURE() << "rank 1 never came";
  } catch (const TimeoutError& error) {
    EXPECT_TRUE(std::string(error.what()).ends_with("; missing: rank 1")) << error.what();
  }
}

// Whether rank 0, which gives up, sees that rank 1 has its hands off: it comes to a barrier that never
// completes, or is through. `waited`: for how long rank 0 did.
bool sees_hands_off(bool comes_to_a_barrier, std::chrono::nanoseconds& waited) {
  ControlBlock block(2);
  shm::Meeting mine(block.control(), "world", 0, 2);
  shm::Meeting theirs(block.control(), "world", 1, 2);
  std::optional<shm::Meeting::AtWork> at_work(theirs.own_seat());
  mine.fail(TimeoutError({1}, "rank 1 is late"));
  std::atomic<bool> over = false;
  std::jthread peer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    over = true;
    if (!comes_to_a_barrier) return at_work.reset();
    EXPECT_THROW(theirs.barrier(), TimeoutError);
  });
  const Clock::time_point begin = Clock::now();
  const bool seen = mine.await_peers_hands_off();
  waited = Clock::now() - begin;
  EXPECT_TRUE(over || !seen);
  return seen;
}

// Not for one that has come to a barrier that never completes, nor for a dead one; and not for ever: a peer
// that got no core for that long is given another chance.
TEST(Meeting, WhoGivesUpWaitsForPeersThatMayWriteToItsMemory) {
  constexpr std::chrono::seconds kPatience{2};
  for (const bool comes_to_a_barrier : {true, false}) {
    std::chrono::nanoseconds waited{};
    bool seen = sees_hands_off(comes_to_a_barrier, waited);
    for (int again = 0; again < 3 && !seen && waited >= kPatience; ++again) {
      say_repeated("rank 1 had its hands on for two seconds");
      seen = sees_hands_off(comes_to_a_barrier, waited);
    }
    EXPECT_TRUE(seen);
  }
  ControlBlock block(2);
  shm::Meeting mine(block.control(), "world", 0, 2);
  const shm::Meeting::AtWork at_work(mine.seat(1));
  mine.fail(TimeoutError({1}, "rank 1 is late"));
  EXPECT_FALSE(mine.await_peers_hands_off());
  mine.peer_died(1);
  EXPECT_TRUE(mine.await_peers_hands_off());
}

// A call is its caller's, and one with more time the engine's own: behind them nothing may speak of either.
TEST(Meeting, SpeaksOfNoCallBehindOneThatThrew) {
  ControlBlock block(2);
  shm::Meeting meeting(block.control(), "world", 0, 2);
  {
    Call call;
    call.what = Collective::all_reduce;
    call.count = 3;
    call.sequence = 7;
    const auto run_out_of_memory = [&] {
      Call patient = call;
      meeting.begin(patient);
      EXPECT_EQ(meeting.where(), call.where("world"));
      throw std::bad_alloc();
    };
    EXPECT_THROW(meeting.during(call, run_out_of_memory), std::bad_alloc);
  }
  EXPECT_EQ(meeting.agreement().call(), nullptr);
  EXPECT_EQ(meeting.where(), "group world");
}

TEST(WithPeers, ALackOfMemoryNamesTheCall) {
  auto engines = local_threads("world", {0}, Knobs::from_environment());
  Call call;
  call.what = Collective::all_reduce;
  call.count = 3;
  call.sequence = 7;
  call.algorithm = "an algorithm whose name is long enough to lie elsewhere";
  call.timeout = std::chrono::seconds(20);
  expect_error<SystemError>(
      [&] {
        engines[0]->composable()->commons()->with_peers(call, std::chrono::milliseconds(5),
                                                        [](Reach&, const Call&) { throw std::bad_alloc(); });
      },
      {"rank 0 is out of memory in", call.describe(), "operation 7 of group world"});
}

}  // namespace
}  // namespace lockstep::testing
