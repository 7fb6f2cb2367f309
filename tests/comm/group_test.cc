// What lockstep/comm/group.h promises about single calls: results, messages, and questions.
#include "lockstep/comm/group.h"

#include <array>
#include <numeric>

#include "comm/group_cases.h"

namespace lockstep::testing {
namespace {

TEST(Results, AverageLeastAndGreatestOfIntegers) {
  on_threads(thread_groups(3, {.timeout = std::chrono::seconds(20)}), [](const Group& g) {
    const std::array<std::int32_t, 3> gives = {7, -4, 5};  // sum 8
    for (const char* algorithm : {"", "direct", "tree", "ring", "halving-doubling", "pairwise"}) {
      std::vector<std::int32_t> x(3, gives[static_cast<std::size_t>(g.rank())]);
      std::vector<std::int32_t> avg = x;
      std::vector<std::int32_t> least = x;
      g.all_reduce(buffer(avg), {.op = ReduceOp::avg, .algorithm = algorithm});
      g.all_reduce(buffer(least), {.op = ReduceOp::min, .algorithm = algorithm});
      g.all_reduce(buffer(x), {.op = ReduceOp::max, .algorithm = algorithm});
      EXPECT_EQ(avg, std::vector<std::int32_t>(3, 8 / 3)) << algorithm;
      EXPECT_EQ(least, std::vector<std::int32_t>(3, -4)) << algorithm;
      EXPECT_EQ(x, std::vector<std::int32_t>(3, 7)) << algorithm;
    }
  });
}

TEST(Results, GroupOfOneAndZeroElementsAreOrdinary) {
  on_threads(thread_groups(1), [](const Group& g) {
    EXPECT_EQ(g.name(), "world");
    EXPECT_STREQ(g.engine(), "shm");
    Floats x = {1, 2};
    Floats y(2);
    g.all_reduce(buffer(x));
    g.all_gather(buffer(x), buffer(y));
    EXPECT_EQ(y, x);
    g.all_to_all(buffer(x), buffer(y));
    g.broadcast(buffer(x), 0);
    g.barrier();
    g.all_reduce(Buffer{});
    g.all_reduce_async(Buffer{}).wait();
    EXPECT_EQ(x, (Floats{1, 2}));
    EXPECT_EQ(g.split(3).size(), 1);
  });
}

TEST(Messages, KeepTheirOrderAndMayBeAnySize) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& g) {
    const std::vector<std::size_t> counts = {0, 1, 15, 16, 17, 1000, 0, 65'536, 65'537, 300'001, 3};
    for (int round = 0; round < 3; ++round)
      for (std::size_t count : counts) {
        std::vector<std::int32_t> x(count);
        std::iota(x.begin(), x.end(), static_cast<std::int32_t>(count) + round);
        if (g.rank() == 0) {
          g.send(buffer(x), 1);
        } else {
          std::vector<std::int32_t> got(count);
          g.recv(buffer(got), 0);
          EXPECT_EQ(got, x);
        }
      }
    // Small ones wait for their receiver; collectives pass between.
    std::vector<std::int64_t> number(1);
    for (std::int64_t i = 0; i < 100 && g.rank() == 0; ++i) {
      number[0] = i;
      g.send(buffer(number), 1);
    }
    expect_usable(g);
    for (std::int64_t i = 0; i < 100 && g.rank() == 1; ++i) {
      g.recv(buffer(number), 0);
      EXPECT_EQ(number[0], i);
    }
  });
}

TEST(Messages, CountsAndTypesMustAgree) {
  struct Case {
    std::size_t sent, received;
    DType sent_as, received_as;
  };
  for (const Case& c : {Case{4, 5, DType::f32, DType::f32}, Case{4, 4, DType::f32, DType::i32},
                        Case{4, 2, DType::f32, DType::f64}, Case{0, 1, DType::f32, DType::f32},
                        Case{9, 0, DType::f32, DType::f32}})
    on_threads(thread_groups(3, {.timeout = std::chrono::seconds(20)}), [&](const Group& g) {
      std::vector<double> x(16);
      if (g.rank() == 2) g.send(ConstBuffer(x.data(), c.sent, c.sent_as), 1);
      if (g.rank() == 1) {
        const auto named = [](DType dtype, std::size_t count) {
          return std::string(to_string(dtype)) + " × " + std::to_string(count);
        };
        expect_error<MismatchError>(
            [&] {
              g.recv(Buffer{x.data(), c.received, c.received_as}, 2);
            },
            {"rank 1 called recv(" + named(c.received_as, c.received),
             "rank 2 called send(" + named(c.sent_as, c.sent)});
      }
      expect_error<MismatchError>([&] { g.barrier(); }, {"rank 2 called send"});
    });
}

TEST(Group, AnswersQuestionsAboutCallsThatNobodyMakes) {
  on_threads(thread_groups(2), [](const Group& g) {
    const CallQuestion large{.count = 1 << 20};
    const CallQuestion small{.count = 1};
    EXPECT_GT(g.expected_seconds(large), g.expected_seconds(small));
    EXPECT_GT(g.expected_seconds(small), 0);
    EXPECT_EQ(g.why_refused(large), "");
    EXPECT_NE(g.why_refused({.count = 1, .options = {.algorithm = "magic"}}).find("magic"),
              std::string::npos);
    EXPECT_NE(g.why_refused({.count = 1, .options = {.op = ReduceOp::bit_and}}).find("integers"),
              std::string::npos);
    EXPECT_NE(
        g.why_refused({.count = 1, .dtype = DType::i32, .options = {.op = ReduceOp::avg, .divisor = 0.5}})
            .find("divisor 0.5"),
        std::string::npos);
    EXPECT_NE(g.why_refused({.count = 1, .options = {.timeout = std::chrono::milliseconds(-5)}})
                  .find("timeout of -5 ms"),
              std::string::npos);
    EXPECT_NE(g.why_refused({.count = std::size_t{1} << 60}).find("larger than any memory"),
              std::string::npos);
    for (const std::string& name : g.algorithms(Collective::all_reduce)) {
      const std::string why = g.why_refused({.count = 4, .options = {.algorithm = name}});
      std::vector<float> x(4, 1);
      if (why.empty())
        g.all_reduce(x, {.algorithm = name});
      else
        expect_error<UsageError>([&] { g.all_reduce(x, {.algorithm = name}); }, {why});
    }
    const CommMemory memory = g.allocate(4096);
    EXPECT_TRUE(g.reaches(memory.data()));
    EXPECT_FALSE(g.reaches(&memory));
    EXPECT_THROW((void)Group().expected_seconds(small), UsageError);
  });
}

}  // namespace
}  // namespace lockstep::testing
