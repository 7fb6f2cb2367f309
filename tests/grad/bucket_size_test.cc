#include "grad/bucket_size.h"

#include <gtest/gtest.h>

#include "comm/thread_ranks.h"
#include "comm/tune/selector.h"
#include "comm/wire_ranks.h"
#include "comm/world/group_impl.h"

namespace lockstep {
namespace {

// α + β a byte.
auto line(double begin_s, double a_byte_s) {
  return [=](std::size_t bytes) { return begin_s + a_byte_s * static_cast<double>(bytes); };
}

TEST(BucketSize, TheSmallestThatIsNearlyAsFastAByte) {
  // At 1 Gbit/s a beginning of 100 µs is nothing beside the 8 ms of one MiB.
  EXPECT_EQ(choose_bucket_size(line(1e-4, 8e-9)).mb, 1);
  // 10 ms: 1 MiB costs 17.5 ns a byte, 8 MiB 9.2, 16 MiB 8.6; 25 MiB 8.38, and a tenth more is 9.22.
  EXPECT_EQ(choose_bucket_size(line(1e-2, 8e-9)).mb, 8);
  EXPECT_EQ(choose_bucket_size(line(1e-3, 8e-9)).mb, 2);
  // All beginning: nothing but the largest comes near.
  EXPECT_EQ(choose_bucket_size(line(1, 1e-12)).mb, 25);
}

TEST(BucketSize, TheReasonHasTheFigures) {
  const std::string small = choose_bucket_size(line(1e-3, 8e-9)).reason;
  EXPECT_NE(small.find("an all-reduce of 2 MiB costs 8.48 ns a byte, of 25 MiB 8.04"), std::string::npos)
      << small;
  const std::string large = choose_bucket_size(line(1, 1e-12)).reason;
  EXPECT_NE(large.find("an all-reduce of 25 MiB costs"), std::string::npos) << large;
}

TEST(BucketSize, WithoutATableItIsTheLargest) {
  EXPECT_EQ(choose_bucket_size([](std::size_t) { return 0.0; }).mb, 25);
}

TEST(BucketSize, SharedMemoryKeepsLargeBuckets) {
  testing::on_threads(thread_groups(2),
                      [](const Group& group) { EXPECT_EQ(bucket_mb_for(group, "", Order::canonical), 25); });
}

TEST(BucketSize, BetweenMachinesTheLinksDecide) {
  for (const auto& [message_s, mb] : {std::pair(1e-4, 1.0), std::pair(10.0, 25.0)})
    testing::on_threads(testing::tcp_groups(2, net::Security::plaintext),
                        [&, message_s = message_s, mb = mb](const Group& group) {
                          Costs costs;
                          costs.message_s = message_s;
                          costs.send = Curve({{1, 8e-9}});
                          engine_of(group).selector()->set_costs(costs);
                          EXPECT_EQ(bucket_mb_for(group, "", Order::canonical), mb);
                        });
}

}  // namespace
}  // namespace lockstep
