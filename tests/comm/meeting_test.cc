// What several threads of one rank do with its place in a group: the own one, and the one that watches peers.
#include "comm/shm/meeting.h"

#include <new>
#include <numeric>
#include <thread>

#include "comm/control_block.h"
#include "comm/expect_error.h"
#include "comm/world/local_world.h"
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

// The call that is spoken of is one of the engine's own, with more time; it must live as long as the talk.
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
