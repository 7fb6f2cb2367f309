// What --compress auto does in the steps between two looks: what the method that it chose does, and no more.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <set>

#include "base/repeated.h"
#include "comm/bytes_sent.h"
#include "compress/two_buckets.h"

namespace lockstep {
namespace {

using lockstep::testing::FakeLink;
using lockstep::testing::kFirstChoice;
using lockstep::testing::on_threads;
using lockstep::testing::settled_bytes_sent;
using lockstep::testing::tcp_groups;
using lockstep::testing::two_ranks;
using lockstep::testing::TwoBuckets;

// What is asked of a rank's links.
struct Questions {
  int table = 0, took = 0, cores = 0;

  compress::LinkView count(const compress::LinkView& links) {
    return {.expected =
                [this, expected = links.expected](const Group& group, const CallQuestion& call) {
                  ++table;
                  return expected(group, call);
                },
            .took =
                [this, seconds = links.took](std::span<const compress::SentBucket> step) {
                  ++took;
                  return seconds(step);
                },
            .waited_for_core = [this] { return ++cores, 0.0; }};
  }
  std::array<int, 3> all() const { return {table, took, cores}; }
};

// Bytes that all ranks send in so many steps.
std::uint64_t bytes_of_steps(const Group& group, TwoBuckets& run, int steps) {
  group.barrier();
  const std::uint64_t before = group.rank() == 0 ? settled_bytes_sent() : 0;
  group.barrier();
  run.take_steps(steps);
  group.barrier();
  const std::uint64_t sent = group.rank() == 0 ? settled_bytes_sent() - before : 0;
  group.barrier();
  return sent;
}

// Eight subtrees of one worker each: fp8 and int8 are scattered, and are expected to cost that.
TEST(AutoCosts, KnowWhatTheFormSends) {
  FakeLink link;
  on_threads(tcp_groups(8, net::Security::plaintext, std::chrono::seconds(20)), [&](const Group& group) {
    std::map<Collective, std::set<std::size_t>> asked;  // bytes
    compress::LinkView links = link.view();
    links.expected = [&asked, expected = links.expected](const Group& of, const CallQuestion& call) {
      asked[call.what].insert(call.count * size_of(call.dtype));
      return expected(of, call);
    };
    TwoBuckets run(group, links, {.method = "auto", .max_error = 0.05});
    run.take_steps(kFirstChoice + 1);
    constexpr std::size_t kPayload = 96 * 64 + 96 * 64 / 512 * 4, kSlice = kPayload / 8 + 1;
    EXPECT_EQ(asked[Collective::all_to_all], std::set<std::size_t>({kSlice}));
    EXPECT_TRUE(asked[Collective::all_gather].contains(kSlice));     // of the sum
    EXPECT_FALSE(asked[Collective::all_gather].contains(kPayload));  // as gathered it would be
  });
}

TEST(AutoBetweenLooks, DoesWhatTheForcedMethodDoes) {
  constexpr int kWatched = compress::LinkWatch::kSteps;
  std::atomic<std::int64_t> more = 1;
  // Who waits for half a second says so over the same wire: then it is counted again.
  for (int attempt = 0; attempt < 5 && more != 0 && !HasFailure(); ++attempt) {
    if (attempt > 0) lockstep::testing::say_repeated(std::to_string(more) + " bytes more than by force");
    FakeLink link;
    on_threads(two_ranks(), [&](const Group& group) {
      Questions questions;
      TwoBuckets run(group, questions.count(link.view()), {.method = "auto", .max_error = 10});
      // The choice, the period's first steps, and one more, in front of which the last of them is taken.
      run.take_steps(kFirstChoice + kWatched + 1);
      const std::array<int, 3> before = questions.all();
      EXPECT_GT(questions.table, 0);
      EXPECT_EQ(questions.took, questions.cores - 2);  // of steps without a gap: two rows of them so far
      const std::string chosen = run.chosen();
      const std::size_t space = chosen.find(' ');
      TwoBuckets forced(group, link,
                        {.method = "few=" + chosen.substr(0, space) + ",full=" + chosen.substr(space + 1)});
      forced.take_steps(2);  // buckets are laid out, connections made

      // Between those steps and the last of the period.
      constexpr int kBetween = compress::Chooser::kFirstInterval - 2 * kWatched - 5;
      const std::uint64_t sent = bytes_of_steps(group, run, kBetween);
      EXPECT_EQ(questions.all(), before) << "table, times, cores";
      const std::uint64_t by_force = bytes_of_steps(group, forced, kBetween);
      if (group.rank() == 0) more = static_cast<std::int64_t>(sent - by_force);
      EXPECT_EQ(run.exchange.figures().sent_bytes, forced.exchange.figures().sent_bytes);

      run.take_steps(kWatched + 4);  // and the next look
      EXPECT_EQ(questions.took, before[1] + kWatched);
      EXPECT_EQ(questions.cores, before[2] + kWatched + 1);
      EXPECT_GT(questions.table, before[0]);
    });
  }
  EXPECT_EQ(more, 0);
}

}  // namespace
}  // namespace lockstep
