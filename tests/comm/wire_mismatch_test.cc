// Ranks that call different things are told, on every rank and soon, who called what.
#include <barrier>

#include "comm/wire_cases.h"

namespace lockstep::testing {
namespace {

struct Difference {
  const char* name;
  std::function<void(const Group&, Buffer, Buffer)> common;
  std::function<void(const Group&, Buffer, Buffer)> odd;  // of one rank
  std::string common_says;
  std::string odd_says;
};

constexpr std::size_t kMany = 300'000;

std::vector<Difference> differences() {
  const auto i32 = [](Buffer b) { return Buffer{b.data, b.count, DType::i32}; };
  const auto part = [](Buffer b, std::size_t count) { return Buffer{b.data, count, b.dtype}; };
  const auto sum = [=](const Group& g, Buffer x, Buffer) { g.all_reduce(part(x, 6)); };
  const auto large = [=](const Group& g, Buffer x, Buffer) { g.all_reduce(x); };
  const std::string sum_says = "all_reduce(f32 × 6, sum)";
  const std::string large_says = "all_reduce(f32 × 300000, sum)";
  return {
      {"operation", sum, [=](const Group& g, Buffer x, Buffer y) { g.all_gather(part(x, 6), part(y, 24)); },
       sum_says, "all_gather(f32 × 6)"},
      {"count", sum, [=](const Group& g, Buffer x, Buffer) { g.all_reduce(part(x, 7)); }, sum_says,
       "all_reduce(f32 × 7, sum)"},
      {"nothing", sum, [=](const Group& g, Buffer x, Buffer) { g.all_reduce(part(x, 0)); }, sum_says,
       "all_reduce(f32 × 0, sum)"},
      {"nothing gathered", sum,
       [=](const Group& g, Buffer x, Buffer y) { g.all_gather(part(x, 0), part(y, 0)); }, sum_says,
       "all_gather(f32 × 0)"},
      {"something for nothing", [=](const Group& g, Buffer x, Buffer) { g.all_reduce(part(x, 0)); }, sum,
       "all_reduce(f32 × 0, sum)", sum_says},
      {"large count", sum, large, sum_says, large_says},
      {"small count", large, sum, large_says, sum_says},
      {"dtype", sum, [=](const Group& g, Buffer x, Buffer) { g.all_reduce(part(i32(x), 6)); }, sum_says,
       "all_reduce(i32 × 6, sum)"},
      {"op", sum, [=](const Group& g, Buffer x, Buffer) { g.all_reduce(part(x, 6), {.op = ReduceOp::max}); },
       sum_says, "all_reduce(f32 × 6, max)"},
      {"algorithm", large, [=](const Group& g, Buffer x, Buffer) { g.all_reduce(x, {.algorithm = "ring"}); },
       large_says, "by ring"},
      {"other algorithm", [=](const Group& g, Buffer x, Buffer) { g.all_reduce(x, {.algorithm = "tree"}); },
       [=](const Group& g, Buffer x, Buffer) { g.all_reduce(x, {.algorithm = "ring"}); }, "by tree",
       "by ring"},
      {"order", sum,
       [=](const Group& g, Buffer x, Buffer) { g.all_reduce(part(x, 6), {.order = Order::any}); }, sum_says,
       "any order"},
      {"root", [=](const Group& g, Buffer x, Buffer) { g.broadcast(part(x, 6), 0); },
       [=](const Group& g, Buffer x, Buffer) { g.broadcast(part(x, 6), 2); }, "root 0", "root 2"},
      {"root of reduce", [=](const Group& g, Buffer x, Buffer y) { g.reduce(part(x, 6), part(y, 6), 3); },
       [=](const Group& g, Buffer x, Buffer y) { g.reduce(part(x, 6), part(y, 6), 1); }, "root 3", "root 1"},
      {"root of gather", [=](const Group& g, Buffer x, Buffer y) { g.gather(part(x, 6), part(y, 24), 0); },
       [=](const Group& g, Buffer x, Buffer y) { g.gather(part(x, 6), part(y, 24), 1); }, "root 0", "root 1"},
      {"root of scatter", [=](const Group& g, Buffer x, Buffer y) { g.scatter(part(x, 24), part(y, 6), 1); },
       [=](const Group& g, Buffer x, Buffer y) { g.scatter(part(x, 24), part(y, 6), 3); }, "root 1",
       "root 3"},
      {"barrier", sum, [](const Group& g, Buffer, Buffer) { g.barrier(); }, sum_says, "barrier("},
      {"barrier while others gather",
       [=](const Group& g, Buffer x, Buffer y) { g.gather(part(x, 6), part(y, 24), 0); },
       [](const Group& g, Buffer, Buffer) { g.barrier(); }, "gather(f32 × 6", "barrier("},
      {"split", sum, [](const Group& g, Buffer, Buffer) { (void)g.split(0); }, sum_says, "split("},
      {"all but one split", [](const Group& g, Buffer, Buffer) { (void)g.split(0); }, large, "split(",
       large_says},
      {"slices", [=](const Group& g, Buffer x, Buffer y) { g.reduce_scatter(part(x, 8), part(y, 2)); },
       [=](const Group& g, Buffer x, Buffer y) { g.reduce_scatter(part(x, 12), part(y, 3)); },
       "reduce_scatter(f32 × 2, sum)", "reduce_scatter(f32 × 3, sum)"},
      {"exchange", [=](const Group& g, Buffer x, Buffer y) { g.all_to_all(part(x, 8), part(y, 8)); },
       [=](const Group& g, Buffer x, Buffer y) { g.reduce_scatter(part(x, 8), part(y, 2)); },
       "all_to_all(f32 × 2)", "reduce_scatter(f32 × 2, sum)"},
      {"divisor",
       [=](const Group& g, Buffer x, Buffer) {
         g.all_reduce(part(x, 6), {.op = ReduceOp::avg, .divisor = 2});
       },
       [=](const Group& g, Buffer x, Buffer) {
         g.all_reduce(part(x, 6), {.op = ReduceOp::avg, .divisor = 3});
       },
       "over 2", "over 3"},
      {"asynchronous", sum, [=](const Group& g, Buffer x, Buffer) { g.all_reduce_async(part(x, 5)).wait(); },
       sum_says, "all_reduce(f32 × 5, sum)"},
  };
}

class WireMismatch : public OverWires {};

// A rank whose part of the call is over before the others' messages come (a root that has sent everything)
// is told by the next call in which it hears from them: at the latest one in which all hear from all.
void differ_in(const Wire& wire, const Difference& d, int odd, std::atomic<bool>& late) {
  std::barrier usable(4);
  on_threads(wire.make(kPatient), [&](const Group& g) {
    SCOPED_TRACE(std::string(d.name) + ", rank " + std::to_string(odd) + " differs, seen by rank " +
                 std::to_string(g.rank()));
    Floats own_x(kMany);
    Floats own_y(kMany);
    const Buffer x{own_x.data(), kMany, DType::f32};
    const Buffer y{own_y.data(), kMany, DType::f32};
    expect_usable(g);
    usable.arrive_and_wait();  // or the news would reach slow ranks there
    std::string line;
    const auto took = time_of([&] {
      line = expect_error<MismatchError>(
          [&] {
            (g.rank() == odd ? d.odd : d.common)(g, x, y);
            g.barrier();
            g.all_to_all(Buffer{x.data, 4, x.dtype}, Buffer{y.data, 4, y.dtype});
          },
          {"operation 2", "world", "called different things", "rank " + std::to_string(odd) + " called ",
           d.common_says, d.odd_says});
    });
    if (took >= kTold) late = true;
    EXPECT_EQ(expect_error<MismatchError>([&] { g.all_reduce(x); }), line);
    EXPECT_EQ(expect_error<MismatchError>([&] { g.barrier(); }), line);
    EXPECT_EQ(expect_error<MismatchError>([&] { g.all_reduce_async(x).wait(); }), line);
    EXPECT_EQ(expect_error<MismatchError>([&] { (void)g.split(0); }), line);
    EXPECT_EQ(expect_error<MismatchError>([&] { g.send(x, (g.rank() + 1) % 4); }), line);
  });
}

TEST_P(WireMismatch, EveryRankIsToldWhoCalledWhatAndItSticks) {
  for (const Difference& d : differences())
    for (const int odd : {1, 3}) {
      SCOPED_TRACE(std::string(d.name) + ", rank " + std::to_string(odd) + " differs");
      expect_told_soon([&](std::atomic<bool>& late) { differ_in(GetParam(), d, odd, late); });
      if (::testing::Test::HasFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Over, WireMismatch, ::testing::ValuesIn(wires()), wire_name);

}  // namespace
}  // namespace lockstep::testing
