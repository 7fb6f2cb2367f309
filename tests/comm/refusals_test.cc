// Calls that lockstep/comm/group.h refuses: how, and that the group is as it was.
#include <limits>

#include "comm/call/reach.h"
#include "comm/group_cases.h"

namespace lockstep::testing {
namespace {

TEST(EmptyGroup, EveryCallIsAnError) {
  const Group none;
  EXPECT_FALSE(none);
  Floats x(4);
  Floats y(4);
  const ConstBuffer in = buffer(x);
  const Buffer out = buffer(y);
  const std::vector<std::function<void()>> calls = {[&] { (void)none.rank(); },
                                                    [&] { (void)none.size(); },
                                                    [&] { (void)none.name(); },
                                                    [&] { (void)none.engine(); },
                                                    [&] { (void)none.nodes(); },
                                                    [&] { (void)none.allocate(8); },
                                                    [&] { none.all_reduce(out); },
                                                    [&] { none.all_reduce(in, out); },
                                                    [&] { none.reduce_scatter(in, out); },
                                                    [&] { none.all_gather(in, out); },
                                                    [&] { none.broadcast(out, 0); },
                                                    [&] { none.reduce(in, out, 0); },
                                                    [&] { none.gather(in, out, 0); },
                                                    [&] { none.scatter(in, out, 0); },
                                                    [&] { none.all_to_all(in, out); },
                                                    [&] { none.barrier(); },
                                                    [&] { none.send(in, 0); },
                                                    [&] { none.recv(out, 0); },
                                                    [&] { (void)none.all_reduce_async(out); },
                                                    [&] { (void)none.barrier_async(); },
                                                    [&] { (void)none.split(0); },
                                                    [&] { (void)none.split_by_node(); }};
  for (const auto& call : calls) expect_error<UsageError>(call, {"Group is empty"});
}

TEST(Refusals, NameWhatWasWrongAndLeaveTheGroupAsItWas) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& g) {
    if (g.rank() == 0) {  // local: the other rank knows nothing of it
      Floats x(8);
      Floats y(8);
      std::vector<double> doubles(4);
      const ConstBuffer four(x.data(), 4, DType::f32);
      const ConstBuffer three(x.data(), 3, DType::f32);
      const Buffer to4{y.data(), 4, DType::f32};
      const Buffer to8{y.data(), 8, DType::f32};
      expect_error<UsageError>(
          [&] {
            g.all_reduce(Buffer{nullptr, 3, DType::i64});
          },
          {"all_reduce", "null", "3 i64"});
      expect_error<UsageError>([&] { g.all_reduce(four, to8); }, {"all_reduce", "4 f32", "8 f32"});
      expect_error<UsageError>([&] { g.reduce_scatter(four, to4); }, {"reduce_scatter", "4 f32", "2 ranks"});
      expect_error<UsageError>([&] { g.all_gather(four, to4); }, {"all_gather", "4 f32", "2 ranks"});
      expect_error<UsageError>(
          [&] {
            g.all_to_all(three, Buffer{y.data(), 3, DType::f32});
          },
          {"all_to_all", "3 f32"});
      expect_error<UsageError>([&] { g.gather(four, to4, 0); }, {"gather", "4 f32"});
      expect_error<UsageError>([&] { g.scatter(four, to4, 0); }, {"scatter", "4 f32"});
      expect_error<UsageError>([&] { g.reduce(four, to8, 0); }, {"reduce", "8 f32"});
      expect_error<UsageError>([&] { g.all_reduce(four, buffer(doubles)); }, {"all_reduce", "f32", "f64"});
      expect_error<UsageError>(
          [&] {
            g.all_reduce(Buffer{x.data(), 4, DType::f32, {Device::Kind::cuda, 0}});
          },
          {"all_reduce", "the shm engine does not work on cuda:0; accepted: cpu"});
      for (int root : {-1, 2, 1000}) {
        const std::string number = std::to_string(root);
        expect_error<UsageError>([&] { g.broadcast(to4, root); },
                                 {"broadcast", "rank " + number, "world", "0 to 1"});
        expect_error<UsageError>([&] { g.send(four, root); }, {"send", "rank " + number, "0 to 1"});
        expect_error<UsageError>([&] { g.recv(to4, root); }, {"recv", "rank " + number, "0 to 1"});
      }
      expect_error<UsageError>([&] { g.send(four, 0); }, {"send", "rank 0", "itself"});
      expect_error<UsageError>([&] { g.recv(to4, 0); }, {"recv", "rank 0", "itself"});
      expect_error<UsageError>([&] { g.all_reduce(to4, {.algorithm = "magic"}); },
                               {"'magic'", "direct", "ring", "tree", "halving-doubling", "hierarchical"});
      expect_error<UsageError>([&] { g.all_gather(four, to8, {.algorithm = "hierarchical"}); },
                               {"all_gather", "'hierarchical'", "accepted", "ring"});
      expect_error<UsageError>([&] { g.send(four, 1, {.algorithm = "ring"}); },
                               {"send", "no algorithm", "'ring'"});
      Floats large(kEagerBytes / 4 + 1);
      expect_error<UsageError>([&] { g.all_reduce(buffer(large), {.algorithm = "eager"}); },
                               {"eager", std::to_string(kEagerBytes), std::to_string(kEagerBytes + 4)});
      for (ReduceOp op : {ReduceOp::bit_and, ReduceOp::bit_or})
        expect_error<UsageError>([&] { g.all_reduce(to4, {.op = op}); },
                                 {"all_reduce", to_string(op), "integers", "f32"});
      expect_error<UsageError>([&] { g.barrier({.timeout = milliseconds(-5)}); },
                               {"barrier", "timeout", "-5 ms", "positive"});
      expect_error<UsageError>([&] { (void)g.all_reduce_async(four, to8); }, {"all_reduce", "8 f32"});
    }
    expect_usable(g);
  });
}

// Numbers whose product with a type's size or the number of ranks does not fit a word.
TEST(Refusals, CountsThatOverflow) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& g) {
    Floats x(8);
    constexpr std::size_t half = std::size_t{1} << 63;
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    for (std::size_t count : {half, most, most / 4 + 2, (std::size_t{1} << 62), (std::size_t{1} << 61)}) {
      const Buffer huge{x.data(), count, DType::f32};
      const ConstBuffer nothing(x.data(), 0, DType::f32);
      expect_error<UsageError>([&] { g.all_reduce(huge); }, {"all_reduce", std::to_string(count)});
      expect_error<UsageError>([&] { g.reduce_scatter(nothing, huge); }, {"reduce_scatter"});
      expect_error<UsageError>([&] { g.all_gather(huge, Buffer{x.data(), 0, DType::f32}); }, {"all_gather"});
      expect_error<UsageError>([&] { g.broadcast(huge, 0); }, {"broadcast"});
      expect_error<UsageError>([&] { g.send(huge, 1 - g.rank()); }, {"send"});
    }
    expect_usable(g);
  });
}

TEST(Overlap, OnlyInPlaceCallsMayShareMemory) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& g) {
    for (const bool comm : {false, true}) {
      Floats own(64);
      const CommMemory memory = g.allocate(64 * sizeof(float));
      float* const x = comm ? memory.as<float>() : own.data();
      const auto in = [&](std::size_t at, std::size_t count) {
        return ConstBuffer(x + at, count, DType::f32);
      };
      const auto out = [&](std::size_t at, std::size_t count) { return Buffer{x + at, count, DType::f32}; };
      const std::size_t other = g.rank() == 0 ? 4 : 0;  // the slice that is not this rank's
      const std::vector<std::string> says = {"overlap", "in-place"};
      expect_error<UsageError>([&] { g.all_reduce(in(0, 8), out(1, 8)); }, says);
      expect_error<UsageError>([&] { g.all_reduce(in(7, 8), out(0, 8)); }, says);
      expect_error<UsageError>([&] { g.reduce_scatter(in(0, 8), out(other, 4)); }, says);
      expect_error<UsageError>([&] { g.reduce_scatter(in(0, 8), out(7, 4)); }, says);
      expect_error<UsageError>([&] { g.all_gather(in(other, 4), out(0, 8)); }, says);
      expect_error<UsageError>([&] { g.all_gather(in(2, 4), out(0, 8)); }, says);
      expect_error<UsageError>([&] { g.all_to_all(in(0, 8), out(4, 8)); }, says);
      expect_error<UsageError>([&] { g.reduce(in(0, 8), out(4, 8), g.rank()); }, says);
      expect_error<UsageError>([&] { g.gather(in(other, 4), out(0, 8), g.rank()); }, says);
      expect_error<UsageError>([&] { g.scatter(in(0, 8), out(other, 4), g.rank()); }, says);
      // Elsewhere than on root the unused buffer is not looked at; touching is not overlapping.
      std::fill_n(x, 64, 1.0F);
      g.all_reduce(in(0, 8), out(8, 8));
      EXPECT_EQ(x[8], 2.0F);
      const auto own_slice = static_cast<std::size_t>(g.rank()) * 4;
      g.reduce_scatter(in(0, 8), out(own_slice, 4));
      g.all_gather(in(own_slice, 4), out(0, 8));
      EXPECT_EQ(Floats(x, x + 8), Floats(8, 2.0F));
      g.all_to_all(in(0, 8), out(0, 8));
      g.gather(in(own_slice, 4), g.rank() == 0 ? out(0, 8) : Buffer{}, 0);
      g.scatter(g.rank() == 1 ? in(0, 8) : ConstBuffer{}, g.rank() == 1 ? out(4, 4) : out(0, 4), 1);
      EXPECT_EQ(Floats(x, x + 8), Floats(8, 2.0F));
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
