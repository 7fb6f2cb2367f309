// Groups with more ranks than fit four words: nobody's number is lost on the way to an error.
#include <cstdlib>
#include <latch>

#include "comm/call/call.h"
#include "comm/call/failure_record.h"
#include "comm/expect_error.h"
#include "comm/thread_ranks.h"

namespace lockstep::testing {
namespace {

constexpr int kManyRanks = 300;
constexpr int kOdd = 280;  // who does not do what the others wait for

// With small regions: the thread sanitizer leaves little more than 1 TiB of address space.
class ManyRanks : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("LOCKSTEP_ARENA", "64M", 1); }
  void TearDown() override { ::unsetenv("LOCKSTEP_ARENA"); }
};

TEST_F(ManyRanks, TheRecordOfAFailureNamesEveryRank) {
  for (const int rank : {0, 63, 255, 256, 299, 1023}) try {
      throw_record(record_of(TimeoutError({rank}, "nobody came")));
    } catch (const TimeoutError& error) {
      EXPECT_EQ(error.missing(), std::vector<int>{rank});
    }
}

TEST_F(ManyRanks, OneThatIsMissingIsNamedOnAllOfThem) {
  std::latch told(kManyRanks - 1);
  std::latch odd_is_out(1);  // until then it says that it waits in the first barrier, and would be no culprit
  on_threads(thread_groups(kManyRanks, {.timeout = std::chrono::minutes(2)}), [&](const Group& g) {
    g.barrier();
    if (g.rank() == kOdd) {
      odd_is_out.count_down();
      return told.wait();
    }
    if (g.rank() == 0) odd_is_out.wait();
    float x = 0;
    try {
      // One rank's time runs out; the others wait for what it finds.
      if (g.rank() == 0)
        g.recv(Buffer{&x, 1, DType::f32}, kOdd, {.timeout = std::chrono::milliseconds(100)});
      else
        g.barrier();
      ADD_FAILURE() << "rank " << g.rank() << " got through";
    } catch (const TimeoutError& error) {
      EXPECT_EQ(error.missing(), std::vector<int>{kOdd});
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
    told.count_down();
  });
}

TEST_F(ManyRanks, OneThatLeftIsNamedOnAllOfThem) {
  with_own_groups(thread_groups(kManyRanks, {.timeout = std::chrono::minutes(2)}), [](Group g) {
    g.barrier();
    if (g.rank() == kOdd) return;
    try {
      g.barrier();
      ADD_FAILURE() << "rank " << g.rank() << " got through";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.rank(), kOdd);
    }
  });
}

TEST_F(ManyRanks, SplitReduceAndNameTheOneThatLeft) {
  constexpr int kParts = 12;
  constexpr int kOddInPart = kOdd / kParts;
  ::setenv("LOCKSTEP_ARENA", "512M", 1);  // where a part's control block has room
  with_own_groups(thread_groups(kManyRanks, {.timeout = std::chrono::minutes(2)}), [](Group world) {
    EXPECT_EQ(world.all_reduce(world.rank()), kManyRanks * (kManyRanks - 1) / 2);
    const int colour = world.rank() % kParts;
    Group part = world.split(colour);
    ASSERT_EQ(part.size(), kManyRanks / kParts);
    EXPECT_EQ(part.rank(), world.rank() / kParts);
    // Everybody's colour, and the sum of the part's world ranks at its last rank.
    EXPECT_EQ(part.all_reduce(colour), colour * part.size());
    const std::vector<int> own = {world.rank()};
    std::vector<int> total(1);
    part.reduce(own, total, part.size() - 1);
    if (part.rank() == part.size() - 1) {
      EXPECT_EQ(total[0], part.size() * (colour + world.rank()) / 2);
    }
    if (world.rank() == kOdd) return;  // with both its groups
    const auto expect_named = [](const Group& g, int rank) {
      try {
        g.barrier();
        ADD_FAILURE() << "rank " << g.rank() << " of " << g.name() << " got through";
      } catch (const PeerError& error) {
        EXPECT_EQ(error.rank(), rank);
        EXPECT_NE(std::string(error.what()).find("rank " + std::to_string(kOdd)), std::string::npos)
            << error.what();
      }
    };
    if (colour == kOdd % kParts)
      expect_named(part, kOddInPart);
    else
      part.barrier();  // nobody of these left
    expect_named(world, kOdd);
  });
}

TEST_F(ManyRanks, MoreThanCanBeNamedAreRefused) {
  expect_error<UsageError>([] { (void)thread_groups(5000); }, {"5000 ranks", "at most 4096"});
}

}  // namespace
}  // namespace lockstep::testing
