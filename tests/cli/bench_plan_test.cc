// The command line of the benchmark: what is understood, and what each refusal says.
#include "cli/bench_plan.h"

#include <gtest/gtest.h>

#include <functional>

#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

BenchFlags all_reduce() {
  BenchFlags flags;
  flags.collective = "all_reduce";
  flags.engines = "shm";
  return flags;
}

std::string refusal(const std::function<void(BenchFlags&)>& change) {
  BenchFlags flags = all_reduce();
  change(flags);
  try {
    make_plan(flags);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(BenchPlan, ReadsLists) {
  BenchFlags flags = all_reduce();
  flags.sizes = "1M,64K,1024K";
  flags.memory = "private,comm";
  const BenchPlan plan = make_plan(flags);
  EXPECT_EQ(plan.sizes, (std::vector<std::uint64_t>{64 << 10, 1 << 20}));
  EXPECT_EQ(plan.memories, (std::vector<std::string>{"private", "comm"}));
  EXPECT_TRUE(plan.has_engine("shm"));
  EXPECT_FALSE(plan.has_engine("mpi"));
}

TEST(BenchPlan, RoundsSizesToWholeSlices) {
  BenchFlags flags = all_reduce();
  flags.collective = "all_gather";
  flags.workers = 3;
  flags.sizes = "4K";
  EXPECT_EQ(make_plan(flags).sizes, (std::vector<std::uint64_t>{4092}));
}

TEST(BenchPlan, DefaultsToAllEnginesThatAreBuilt) {
  BenchFlags flags = all_reduce();
  flags.engines.clear();
  auto all_but_tls = built_engines();
  std::erase(all_but_tls, "tls");
  EXPECT_EQ(make_plan(flags).engines, all_but_tls);
  EXPECT_EQ(built_engines().front(), "shm");
}

TEST(BenchPlan, RefusalsNameTheFlagAndWhatIsAccepted) {
  const auto has = [](const std::string& text, std::initializer_list<const char*> parts) {
    for (const char* part : parts)
      if (text.find(part) == std::string::npos)
        return testing::AssertionFailure() << text << " lacks " << part;
    if (text.find('\n') != std::string::npos)
      return testing::AssertionFailure() << text << " has several lines";
    return testing::AssertionSuccess();
  };
  EXPECT_TRUE(
      has(refusal([](auto& f) { f.collective = "all_reduse"; }), {"all_reduse", "all_reduce", "send_recv"}));
  EXPECT_TRUE(has(refusal([](auto& f) { f.collective = "steps"; }),
                  {"steps", "send_recv, compress, step", "mean 'step'"}));
  EXPECT_TRUE(has(refusal([](auto& f) { f.engines = "shm,tpc"; }), {"--engines", "tpc", "tcp"}));
  EXPECT_TRUE(has(refusal([](auto& f) { f.sizes = "4Q"; }), {"--sizes", "4Q"}));
  EXPECT_TRUE(has(refusal([](auto& f) { f.sizes = "4K,,1M"; }), {"--sizes", "4K,,1M"}));
  EXPECT_TRUE(has(refusal([](auto& f) { f.sizes = std::string("2"); }), {"--sizes", "2", "f32"}));
  EXPECT_TRUE(has(refusal([](auto& f) { f.memory = "gpu"; }), {"--memory", "gpu", "comm", "private"}));
  EXPECT_TRUE(has(refusal([](auto& f) { f.dtype = "f33"; }), {"--dtype", "f33", "bf16"}));
  EXPECT_TRUE(has(refusal([](auto& f) { f.op = "mul"; }), {"--op", "mul", "product"}));
  EXPECT_TRUE(has(refusal([](auto& f) { f.op = "bit_and"; }), {"--op", "bit_and", "f32"}));
  EXPECT_TRUE(has(refusal([](auto& f) { f.workers = 0; }), {"-n", "0", "1024"}));
  EXPECT_TRUE(has(refusal([](auto& f) { f.iterations = -1; }), {"--iterations", "-1"}));
  EXPECT_TRUE(has(refusal([](auto& f) { f.min_time_s = -1; }), {"--min-time", "-1"}));
  EXPECT_TRUE(has(refusal([](auto& f) {
                    f.collective = "send_recv";
                    f.workers = 1;
                  }),
                  {"send_recv", "2 workers"}));
}

}  // namespace
}  // namespace lockstep::cli
