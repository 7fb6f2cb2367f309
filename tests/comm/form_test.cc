// Groups that their members form alone, with threads as members: what lockstep/comm/init.h promises.
#include <latch>

#include "comm/expect_error.h"
#include "comm/form_members.h"
#include "comm/patience.h"
#include "net/secret.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;

class FormGroup : public FormsGroups {};

TEST_F(FormGroup, OfItsMembersAlone) {
  members(3, [](int rank) {
    const Group g = form_group({.id = "trio", .size = 3, .rank = rank}, kAmple);
    EXPECT_EQ(g.name(), "trio");
    EXPECT_EQ(g.rank(), rank);
    EXPECT_EQ(g.size(), 3);
    EXPECT_EQ(g.timeout(), kAmple.timeout);
    EXPECT_STREQ(g.engine(), "shm");
    expect_works(g);
    const Group part = g.split(rank % 2);
    EXPECT_EQ(part.size(), rank % 2 == 0 ? 2 : 1);
    expect_works(part);
  });
}

TEST_F(FormGroup, OfOne) {
  const Group g = form_group({.id = "alone", .size = 1, .rank = 0});
  EXPECT_EQ(g.all_reduce(7), 7);
  EXPECT_EQ(g.name(), "alone");
}

// What elasticity needs: the failed group goes its way, and another one of the survivors and a newcomer
// works.
TEST_F(FormGroup, SurvivorsGoOnAndANewcomerJoins) {
  std::latch failed(3);
  const auto survivor = [&](const Group& world) {
    try {
      world.barrier();
      ADD_FAILURE() << "rank " << world.rank() << " got through";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.rank(), 1);
    }
    failed.count_down();
    const int rank = world.rank() == 0 ? 0 : world.rank() - 1;
    const Group next = form_group({.id = "second", .size = 4, .rank = rank}, kAmple);
    expect_works(next);
    expect_error<PeerError>([&] { world.barrier(); }, {"rank 1"});  // as failed as before
    expect_works(next);
  };
  std::vector<std::function<void()>> bodies;
  for (int r = 0; r < 4; ++r)
    bodies.emplace_back([&, r] {
      const Group world = form_group({.id = "first", .size = 4, .rank = r}, kAmple);
      world.barrier();
      if (r != 1) survivor(world);
    });
  bodies.emplace_back([&] {  // was never in the first one
    failed.wait();
    const Group next = form_group({.id = "second", .size = 4, .rank = 3}, kAmple);
    expect_works(next);
    expect_works(next);
  });
  together(bodies);
}

TEST_F(FormGroup, GroupsThatFormAtOnceDoNotMix) {
  std::vector<std::function<void()>> bodies;
  for (int i = 0; i < 8; ++i)
    bodies.emplace_back([i] {
      const std::string id = "group " + std::to_string(i % 4);
      const Group g = form_group({.id = id, .size = 2, .rank = i / 4}, kAmple);
      EXPECT_EQ(g.name(), id);
      EXPECT_EQ(g.all_reduce(i % 4), 2 * (i % 4));
    });
  together(bodies);
}

TEST_F(FormGroup, TwoWithOneRankAreNamed) {
  std::latch joined(2);
  const auto twin = [&](int rank) {
    joined.arrive_and_wait();
    expect_error<UsageError>([&] { (void)form_group({.id = "twins", .size = 3, .rank = rank}, kAmple); },
                             {"two workers both say they are rank 1 of 3"});
  };
  together({[&] {
              expect_error<UsageError>(
                  [] { (void)form_group({.id = "twins", .size = 3, .rank = 0}, kAmple); },
                  {"two workers both say they are rank 1 of 3"});
            },
            [&] { twin(1); }, [&] { twin(1); }});
}

TEST_F(FormGroup, AnotherSizeIsNamed) {
  members(2, [](int rank) {
    expect_error<UsageError>(
        [&] { (void)form_group({.id = "sizes", .size = 2 + rank, .rank = rank}, kAmple); },
        {"rank 0 was told 2", "rank 1 was told 3"});
  });
}

// Ranks 0 and 1 of three.
void expect_the_third_is_missed(const std::string& id, const std::string& endpoint = "") {
  expect_seen("2", 2, milliseconds(300), [&](milliseconds patience, Seen& seen) {
    members(2, [&](int rank) {
      try {
        (void)form_group({.id = id, .size = 3, .rank = rank, .endpoint = endpoint},
                         {.init_timeout = patience});
        ADD_FAILURE() << "formed without rank 2";
      } catch (const TimeoutError& error) {
        seen.note(error.missing());
      } catch (const PeerError& error) {  // rank 0, which gave up just now
        seen.note(error.what());
      }
    });
  });
}

TEST_F(FormGroup, WhoDoesNotComeIsNamed) { expect_the_third_is_missed("late"); }

TEST_F(FormGroup, BadPlansAreRefused) {
  const auto plan = [](GroupPlan p) { return [p] { (void)form_group(p); }; };
  expect_error<UsageError>(plan({.id = "", .size = 2, .rank = 0}), {"id ''", "accepted"});
  expect_error<UsageError>(plan({.id = "two\nlines", .size = 2, .rank = 0}), {"id 'two lines'"});
  expect_error<UsageError>(plan({.id = std::string(201, 'x'), .size = 2, .rank = 0}), {"1 to 200"});
  expect_error<UsageError>(plan({.id = "none", .size = 0, .rank = 0}), {"0 members", "at least 1"});
  expect_error<UsageError>(plan({.id = "out", .size = 2, .rank = 2}), {"rank 2 of group out", "0 to 1"});
  expect_error<UsageError>(plan({.id = "out", .size = 2, .rank = -1}), {"rank -1", "0 to 1"});
  expect_error<UsageError>(plan({.id = "far", .size = 5000, .rank = 0}), {"5000 ranks"});
  expect_error<UsageError>(
      [] { (void)form_group({.id = "a", .size = 1, .rank = 0}, {.init_timeout = milliseconds(-1)}); },
      {"init_timeout of -1 ms"});
  set("LOCKSTEP_ENGINE", "shm");
  expect_error<UsageError>(plan({.id = "wide", .size = 2, .rank = 0, .endpoint = "10.0.0.1:1"}),
                           {"LOCKSTEP_ENGINE=shm", "group wide", "several machines"});
  set("LOCKSTEP_ENGINE", "shm+mpi");
  expect_error<UsageError>(plan({.id = "mpi", .size = 2, .rank = 0}), {"shm+mpi", "mpirun", "accepted"});
}

TEST_F(FormGroup, TheEngineThatIsAskedForIsThereOrTheLineSaysWhatIs) {
  const auto refused = [this](const std::string& engine, const std::vector<std::string>& parts) {
    set("LOCKSTEP_ENGINE", engine);
    return expect_error<UsageError>(
        [] { (void)form_group({.id = "asked", .size = 2, .rank = 0, .endpoint = "10.0.0.1:1"}); }, parts);
  };
  for (const std::string engine : {"tpc", "shm+", "+tcp", "shm+tcp+tcp", "shm+auto"})
    refused(engine, {"LOCKSTEP_ENGINE='" + engine +
                     "' is not understood; accepted: auto, shm, tcp, shm+tcp, tcp+tcp"});
  refused("gloo", {"LOCKSTEP_ENGINE asks for gloo, which this program was built without; it has: shm, tcp"});
  refused("shm+gloo", {"asks for gloo, which this program was built without"});
  refused("shm+shm", {"LOCKSTEP_ENGINE=shm+shm: shm can't be across nodes", "accepted: auto, shm"});
  refused("shm", {"may be on several machines; accepted for several machines: auto, tcp, shm+tcp, tcp+tcp"});
  set("LOCKSTEP_ENGINE", "tpc");  // a group of one has no need of it, but would not say so
  expect_error<UsageError>([] { (void)form_group({.id = "alone", .size = 1, .rank = 0}); }, {"'tpc'"});
}

TEST_F(FormGroup, AcrossMachinesAtAnEndpoint) {
  set("LOCKSTEP_SECRET", net::Secret::make().hex());
  set("LOCKSTEP_NODE_SIZE", "2");  // two nodes of two
  const std::string endpoint = free_endpoint();
  for (const std::string id : {"wires", "wires again"})
    members(4, [&](int rank) {
      const Group g = form_group({.id = id, .size = 4, .rank = rank, .endpoint = endpoint}, kAmple);
      EXPECT_STREQ(g.engine(), "shm+tcp");
      EXPECT_EQ(g.nodes(), (std::vector<int>{0, 0, 1, 1}));
      EXPECT_EQ(g.name(), id);
      expect_works(g);
    });
  for (const std::string engine : {"shm+tcp", "tcp+tcp"}) {
    set("LOCKSTEP_ENGINE", engine);
    for (const int size : {4, 3, 2})  // two nodes of two, a smaller one, one node
      members(size, [&](int rank) {
        const Group g = form_group({.id = engine, .size = size, .rank = rank, .endpoint = endpoint}, kAmple);
        EXPECT_EQ(std::string(g.engine()), size > 2 ? engine : engine.substr(0, 3));
        expect_works(g);
        const Group part = g.split(0, -rank);
        EXPECT_EQ(part.rank(), size - 1 - rank);
        expect_works(part);
      });
  }
  set("LOCKSTEP_ENGINE", "tcp");
  expect_the_third_is_missed("late wires", endpoint);
  for (const std::string where : {"nowhere", "nowhere:0", "nowhere:port"})
    expect_error<UsageError>(
        [&] { (void)form_group({.id = "where", .size = 2, .rank = 0, .endpoint = where}, kAmple); },
        {"GroupPlan::endpoint", where, "accepted"});
}

TEST_F(FormGroup, IsRefusedInAContinuation) {
  expect_error<UsageError>(
      [] { Work().then([] { (void)form_group({.id = "within", .size = 1, .rank = 0}, kAmple); }).wait(); },
      {"form_group", "then()", "accepted"});
}

}  // namespace
}  // namespace lockstep::testing
