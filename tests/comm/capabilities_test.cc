// What engines declare, and the refusals that follow from it.
#include "comm/call/capabilities.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "comm/engine/known_engines.h"
#include "comm/engine/registry.h"
#include "comm/expect_error.h"
#include "lockstep/comm/init.h"

namespace lockstep::testing {
namespace {

Capabilities two_ways() {
  Capabilities can;
  can.offers = {{.name = "quick",
                 .collectives = {Collective::all_reduce, Collective::barrier},
                 .canonical = false,
                 .lacks = {{{ReduceOp::product}, {DType::bf16, DType::f16}, "quick has no"}},
                 .at_most_bytes = 64,
                 .learns_divisor = false},
                {.name = "sure", .collectives = {Collective::all_reduce}, .not_here = "the kernel says no"}};
  return can;
}

Call call_of(const std::string& algorithm, DType dtype = DType::f32, ReduceOp op = ReduceOp::sum) {
  Call call;
  call.what = Collective::all_reduce;
  call.algorithm = algorithm;
  call.dtype = dtype;
  call.op = op;
  call.count = 8;
  return call;
}

std::string why(const Capabilities& can, const Call& call) {
  return can.refuses("toy", call, 2, call.algorithm);
}

TEST(Capabilities, NameWhatACollectiveHas) {
  const Capabilities can = two_ways();
  EXPECT_EQ(can.algorithms(Collective::all_reduce), (std::vector<std::string>{"quick", "sure"}));
  EXPECT_EQ(can.algorithms(Collective::barrier), (std::vector<std::string>{"quick"}));
  EXPECT_TRUE(can.algorithms(Collective::gather).empty());
}

// What an engine puts on no stream would order nothing there.
TEST(Capabilities, RefuseABarrierOfStreamsThatThereIsNot) {
  Capabilities can = two_ways();
  can.devices.add(Device::Kind::cuda);
  Call barrier;
  EXPECT_EQ(why(can, barrier), "");
  barrier.device = {Device::Kind::cuda, 1};
  EXPECT_EQ(
      why(can, barrier),
      "the toy engine has no barrier of streams on cuda:1; accepted: one of the host, or a call that moves "
      "something");
  can.stream_barrier = true;
  EXPECT_EQ(why(can, barrier), "");
}

TEST(Capabilities, RefuseWhatIsNotDeclared) {
  const Capabilities can = two_ways();
  EXPECT_EQ(why(can, call_of("")), "");
  EXPECT_EQ(why(can, call_of("quick")), "");
  EXPECT_EQ(why(can, call_of("magic")), "no algorithm 'magic' on engine toy; accepted: quick, sure");
  EXPECT_EQ(why(can, call_of("quick", DType::bf16, ReduceOp::product)), "quick has no product of bf16");
  EXPECT_EQ(why(can, call_of("quick", DType::bf16)), "");
  EXPECT_EQ(why(can, call_of("sure")),
            "sure can't run here: the kernel says no; without a name another algorithm is chosen");
  Call large = call_of("quick");
  large.count = 17;
  EXPECT_EQ(why(can, large), "quick carries at most 64 bytes, this call has 68");
  Capabilities few = two_ways();
  few.offers[0].at_most_count = 7;
  EXPECT_EQ(why(few, call_of("quick")), "quick all_reduce takes at most 7 elements a rank, this call has 8");
  Call left_to_others = call_of("quick", DType::f32, ReduceOp::avg);
  left_to_others.divisor = kDivisorOfOthers;
  EXPECT_EQ(why(can, left_to_others), "quick needs the divisor from every rank");
  Call split = call_of("quick");
  split.what = Collective::split;
  EXPECT_EQ(why(can, split), "it takes no algorithm, not 'quick'");
  Call on_device = call_of("");
  on_device.device.kind = Device::Kind::cuda;
  EXPECT_EQ(why(can, on_device), "the toy engine does not work on cuda:0; accepted: cpu");
}

TEST(Capabilities, ACallThatNamesNoneNeedsOneThatTakesIt) {
  Capabilities can = two_ways();
  can.offers.pop_back();
  EXPECT_EQ(why(can, call_of("", DType::f16, ReduceOp::product)), "quick has no product of f16");
  EXPECT_EQ(why(can, call_of("", DType::f16)), "");
}

TEST(Capabilities, LookAtBuffersLast) {
  Capabilities can = two_ways();
  can.offers.front().looks_at = [](const Call& call) {
    return call.in == nullptr ? std::string() : "not this buffer";
  };
  float x = 0;
  Call call = call_of("quick");
  EXPECT_EQ(why(can, call), "");
  call.in = &x;
  EXPECT_EQ(why(can, call), "not this buffer");
  call.count = 17;
  EXPECT_EQ(why(can, call), "quick carries at most 64 bytes, this call has 68");
}

TEST(Engines, SayWhatTheyCanDoOrHowToGetThem) {
  const std::vector<EngineView> engines = all_engines();
  ASSERT_EQ(engines.size(), std::size(kKnownEngines));
  for (const EngineView& engine : engines) {
    EXPECT_FALSE(std::string(engine.profile.about).empty());
    EXPECT_EQ(engine.missing.empty(), !engine.can.offers.empty()) << engine.profile.name;
  }
  EXPECT_STREQ(engines[0].profile.name, "shm");
  EXPECT_TRUE(engines[0].can.reachable_memory);
  EXPECT_FALSE(engines[1].can.reachable_memory);
  const auto names = engines[0].can.algorithms(Collective::all_reduce);
  EXPECT_NE(std::ranges::find(names, "direct"), names.end());
  EXPECT_EQ(std::ranges::find(names, "by-node"), names.end());  // that is for two engines
  for (const Offer& offer : engines[1].can.offers) EXPECT_NE(offer.name, "direct");
}

// Of algorithms that other engines have, too: a run may have been begun over one.
TEST(Engines, SayWhichSumsAreCanonical) {
  const auto canonical = [](const Group& g, std::string_view algorithm,
                            Collective what = Collective::all_reduce) {
    return g.sums_canonically({.what = what, .options = {.algorithm = algorithm}});
  };
  const std::vector<Group> groups = thread_groups(3, {}, {0, 1, 0});
  const Group& g = groups.front();
  EXPECT_TRUE(canonical(g, ""));
  EXPECT_FALSE(g.sums_canonically({.options = {.order = Order::any}}));
  EXPECT_TRUE(g.sums_canonically({.options = {.algorithm = "tree", .order = Order::any}}));
  for (const char* name : {"direct", "tree", "halving-doubling", "pairwise"})
    EXPECT_TRUE(canonical(g, name)) << name;
  // There is no such reduce-scatter, and nobody has a nonesuch. Nodes 0 1 0 are not aligned.
  EXPECT_TRUE(canonical(g, "tree", Collective::reduce_scatter));
  for (const char* name : {"ring", "hierarchical", "by-node", "nonesuch"})
    EXPECT_FALSE(canonical(g, name)) << name;
  EXPECT_FALSE(canonical(g, "ring", Collective::reduce_scatter));
  EXPECT_TRUE(canonical(thread_groups(3, {}, {0, 0, 1}).front(), "hierarchical"));
}

TEST(Engines, AreNamedAloneOrByTwo) {
  EXPECT_EQ(engine_words(),
            (std::vector<std::string>{"auto", "shm", "tcp", "mpi", "gloo", "ipc", "nccl", "shm+tcp",
                                      "shm+mpi", "shm+gloo", "tcp+tcp", "tcp+gloo"}));
  const auto why = [](const char* inside, const char* across) {
    return why_not_composed(*known_engine(inside), *known_engine(across), kKnownEngines);
  };
  EXPECT_EQ(why("shm", "gloo"), "");
  EXPECT_EQ(why("shm", "shm"), "shm can't be across nodes: its ranks are on one machine");
  EXPECT_EQ(why("gloo", "tcp"), "gloo is not made for the inside of nodes");
  EXPECT_EQ(why("shm", "nccl"), "nccl carries all ranks by itself");
  EXPECT_EQ(why("tcp", "mpi"),
            "tcp inside nodes is a part of tcp over all workers, which is not there with mpi across");
}

TEST(Engines, HaveNamesOfTheirOwn) {
  const auto add = [](const char* name) {
    return [name] { add_engine({.profile = {.name = name, .about = "no engine"}, .can = {}, .make = {}}); };
  };
  expect_error<UsageError>(add("shm"), {"there is an engine 'shm' already"});
  for (const char* name : {"", "auto", "a+b"})
    expect_error<UsageError>(add(name), {"can't be called '" + std::string(name) + "'"});
  EXPECT_EQ(find_engine("a+b"), nullptr);
}

}  // namespace
}  // namespace lockstep::testing
