// --compress auto on links that are what a test says: which bucket gets what, and when that changes.
#include <gtest/gtest.h>

#include "compress/two_buckets.h"

namespace lockstep {
namespace {

using compress::LinkWatch;
using compress::Period;
using lockstep::testing::FakeLink;
using lockstep::testing::keeps_few_bits;
using lockstep::testing::kEvery;
using lockstep::testing::kFast;
using lockstep::testing::kFirstChoice;
using lockstep::testing::kNone;
using lockstep::testing::kSlowdown;
using lockstep::testing::on_threads;
using lockstep::testing::tcp_groups;
using lockstep::testing::two_ranks;
using lockstep::testing::TwoBuckets;

TEST(AutoByBucket, EachGetsWhatItsErrorAllows) {
  FakeLink link;
  on_threads(two_ranks(), [&](const Group& group) {
    TwoBuckets run(group, link, {.method = "auto", .max_error = 0.05});
    run.take_steps(kFirstChoice);
    const std::string chosen = run.chosen();
    const std::string few = chosen.substr(0, chosen.find(' ')), full = chosen.substr(chosen.find(' ') + 1);
    EXPECT_TRUE(few == "topk:0.01" || few == "powersgd:rank=4") << chosen;
    EXPECT_TRUE(keeps_few_bits(full)) << chosen;
    const ExchangeFigures figures = run.exchange.figures();
    EXPECT_NE(figures.about.find(few + " (50 %)"), std::string::npos) << figures.about;
    EXPECT_EQ(figures.history.size(), 2U);
    // Both ways are really gone: the one is nearly exact, the other rounds.
    run.step();
    EXPECT_LT(figures.sent_bytes, 0.3 * figures.dense_bytes);
    // All alike, history included.
    const std::vector<std::string> all = group.all_gather(chosen + figures.history[0] + figures.history[1]);
    EXPECT_EQ(all[0], all[1]);
  });
}

TEST(AutoByBucket, NothingPaysOnAFastLink) {
  FakeLink link;
  link.byte_s = kFast;
  on_threads(two_ranks(), [&](const Group& group) {
    TwoBuckets run(group, link, {.method = "auto", .max_error = 10, .probe_every = kEvery});
    run.take_steps(kFirstChoice + 2 * kEvery);
    EXPECT_EQ(run.chosen(), kNone);
    EXPECT_EQ(run.exchange.figures().history.size(), 1U);  // the first choice, and no other
  });
}

// The link becomes slow, which the measured times tell and the table does not; then as it was.
TEST(AutoOnChangingLinks, ChoosesAgainAndPaysWhatItOwes) {
  FakeLink link;
  link.byte_s = kFast;
  on_threads(two_ranks(), [&](const Group& group) {
    FakeLink none;
    TwoBuckets run(group, link, {.method = "auto", .max_error = 10, .probe_every = kEvery});
    TwoBuckets dense(group, none, {.method = "none"});
    const auto both = [&](int count) {
      run.take_steps(count);
      dense.take_steps(count);
      group.barrier();
    };
    both(kFirstChoice);
    EXPECT_EQ(run.chosen(), kNone);
    link.slowdown = kSlowdown;
    both(kEvery);
    const std::string slow = run.chosen();
    EXPECT_EQ(slow.find("-1"), std::string::npos) << slow;
    EXPECT_NE(run.exchange.figures().about.find(slow.substr(slow.find(' ') + 1)), std::string::npos);
    both(2 * kEvery);
    EXPECT_EQ(run.chosen(), slow);  // no reason to change
    EXPECT_FALSE(torch::equal(run.last[1], dense.last[1]));
    link.slowdown = 1;
    both(kEvery);
    EXPECT_EQ(run.chosen(), kNone);
    for (std::size_t p = 0; p < 2; ++p) {
      const double off = (run.sums[p] - dense.sums[p]).norm().item<double>();
      EXPECT_LT(off, 1e-3 * dense.sums[p].norm().item<double>()) << run.parameters[p].name << ", " << slow;
    }
    both(1);
    EXPECT_TRUE(torch::equal(run.last[1], dense.last[1]));
    std::string history;
    for (const std::string& line : run.exchange.figures().history) history += line + "\n";
    EXPECT_NE(history.find("its costs count 1e+10 times"), std::string::npos) << history;
    EXPECT_NE(history.find(": none in place of "), std::string::npos) << history;
  });
}

// Ranks may have measured their links differently: rank 0's count for all.
TEST(AutoByBucket, GoesByOneTable) {
  FakeLink slow, fast;
  fast.byte_s = kFast;
  slow.slowdown = fast.slowdown = 0;  // nothing is measured
  on_threads(two_ranks(), [&](const Group& group) {
    TwoBuckets run(group, group.rank() == 0 ? fast : slow, {.method = "auto", .max_error = 10});
    run.take_steps(kFirstChoice + 1);
    EXPECT_EQ(run.chosen(), kNone);
  });
}

// One bucket's choice changes; what is remembered of the other's parameter goes on: all that was meant was
// sent, or is owed.
TEST(AutoOnChangingGradients, KeepsWhatIsRememberedOfOthers) {
  FakeLink link;
  on_threads(two_ranks(), [&](const Group& group) {
    TwoBuckets run(group, link, {.method = "auto", .max_error = 0.05, .probe_every = kEvery});
    TwoBuckets dense(group, link, {.method = "none"});
    for (TwoBuckets* one : {&run, &dense}) {
      one->take_steps(kFirstChoice);
      one->full_is_few = true;
    }
    const std::string before = run.chosen();
    run.take_steps(kEvery + 1);
    dense.take_steps(kEvery + 1);
    EXPECT_NE(run.chosen(), before);
    EXPECT_EQ(run.chosen().substr(0, 4), before.substr(0, 4));
    const Exchange::State state = run.exchange.state();
    const torch::Tensor owed = state.at("owed/0/few") + state.at("owed/1/few");
    EXPECT_GT(owed.norm().item<double>(), 1e-3);
    EXPECT_LT((run.sums[0] - owed - dense.sums[0]).norm().item<double>(), 1e-4);
  });
}

TEST(AutoOnChangingGradients, LeavesWhatIsTooFarOff) {
  FakeLink link;
  on_threads(two_ranks(), [&](const Group& group) {
    TwoBuckets run(group, link, {.method = "auto", .max_error = 0.05, .probe_every = kEvery});
    run.take_steps(kFirstChoice);
    EXPECT_FALSE(keeps_few_bits(run.chosen().substr(0, run.chosen().find(' '))));
    run.few_is_full = true;
    run.take_steps(kEvery);
    EXPECT_TRUE(keeps_few_bits(run.chosen().substr(0, run.chosen().find(' ')))) << run.chosen();
  });
}

TEST(AutoOnce, IsNotAskedAgain) {
  FakeLink link;
  link.byte_s = kFast;
  on_threads(two_ranks(), [&](const Group& group) {
    TwoBuckets run(group, link, {.method = "auto", .max_error = 10, .probe_every = 0});
    run.take_steps(kFirstChoice);
    link.slowdown = kSlowdown;
    run.take_steps(60);
    EXPECT_EQ(run.chosen(), kNone);
  });
}

TEST(AutoState, GoesOnWithChoicesAndHistory) {
  FakeLink link;
  on_threads(two_ranks(), [&](const Group& group) {
    const CompressOptions options{.method = "auto", .max_error = 0.05};
    TwoBuckets run(group, link, options), later(group, link, options);
    run.take_steps(kFirstChoice + 2);
    later.exchange.load(run.exchange.state());
    later.steps = run.steps;
    EXPECT_EQ(later.chosen(), run.chosen());
    EXPECT_EQ(later.exchange.figures().history, run.exchange.figures().history);
    run.take_steps(2);
    later.take_steps(2);
    for (std::size_t p = 0; p < 2; ++p) EXPECT_TRUE(torch::equal(run.last[p], later.last[p])) << p;
    Exchange::State other = run.exchange.state();
    other["auto"] = torch::zeros({3}, torch::kInt64);
    EXPECT_THROW(later.exchange.load(other), UsageError);
  });
}

// A run that compressed goes on in shared memory: what it owes is paid, and nothing is compressed any more.
TEST(AutoState, IsLeftWhereMemoryIsShared) {
  FakeLink link;
  Exchange::State state;
  std::vector<torch::Tensor> owed;
  on_threads(two_ranks(), [&](const Group& group) {
    TwoBuckets run(group, link, {.method = "auto", .max_error = 10});
    run.take_steps(kFirstChoice + 3);
    const Exchange::State own = run.exchange.state();
    if (group.rank() != 0) return;
    for (const auto& [name, tensor] : own) state[name] = tensor.clone();
  });
  ASSERT_TRUE(state.contains("owed/0/full") && state.contains("owed/1/full"));
  on_threads(thread_groups(2), [&](const Group& group) {
    TwoBuckets run(group, link, {.method = "auto", .max_error = 10}), dense(group, link, {.method = "none"});
    run.exchange.load(state);
    run.step();
    dense.step();
    EXPECT_EQ(run.exchange.figures().about, "auto: none; the workers share their memory");
    const torch::Tensor paid = -(state.at("owed/0/full") + state.at("owed/1/full"));
    EXPECT_TRUE(torch::allclose(run.last[1], dense.last[1] + paid, 1e-4, 1e-6));
    EXPECT_GT(paid.norm().item<double>(), 0.1);
    run.step();
    dense.step();
    EXPECT_TRUE(torch::equal(run.last[1], dense.last[1]));
  });
}

// Of three ranks another one is the last in every step, for which the two others wait: no link is slow.
TEST(AutoByBucket, WhoIsLateInTurnIsNoSlowLink) {
  FakeLink link;
  link.byte_s = kFast;
  on_threads(tcp_groups(3, net::Security::plaintext, std::chrono::seconds(20)), [&](const Group& group) {
    compress::LinkView view = link.view();
    view.took = [rank = group.rank(), took = view.took, step = 0](auto sent) mutable {
      return took(sent) * (++step % 3 == rank ? 1 : kSlowdown);
    };
    TwoBuckets run(group, view, {.method = "auto", .max_error = 10, .probe_every = kEvery});
    run.take_steps(kFirstChoice + 2 * kEvery);
    EXPECT_EQ(run.chosen(), kNone);
    EXPECT_EQ(run.exchange.figures().history.size(), 1U);
  });
}

// One rank has no core for half of the time, and its exchanges take many times what they should.
TEST(AutoByBucket, ACoreThatIsBusyIsNoSlowLink) {
  for (const bool waits : {true, false}) {
    FakeLink link;
    link.byte_s = kFast;
    on_threads(two_ranks(), [&](const Group& group) {
      compress::LinkView view = link.view();
      double waited_s = 0;
      view.took = [&, took = view.took](auto sent) { return kSlowdown * took(sent); };
      view.waited_for_core = [&, step_s = 0.5 * kSlowdown * kFast * 2 * 96 * 64 * sizeof(float)] {
        return waits && group.rank() == 0 ? waited_s += step_s : 0;
      };
      TwoBuckets run(group, view, {.method = "auto", .max_error = 10, .probe_every = kEvery});
      run.take_steps(kFirstChoice + 2 * kEvery);
      EXPECT_EQ(run.chosen() == kNone, waits) << run.chosen();
    });
  }
}

// Two methods in one bucket, as after a resume with larger ones: few bytes that go fast say nothing of many.
TEST(AutoByBucket, SeveralInOneAreNoFastLink) {
  FakeLink link;
  link.slowdown = 1e-6;
  on_threads(two_ranks(), [&](const Group& group) {
    TwoBuckets run(group, link, {.method = "auto", .max_error = 10, .probe_every = kEvery});
    run.rebind(group, 1 << 20);
    Exchange::State state = run.exchange.state();
    state["auto"] = torch::tensor({4, 1}, torch::kInt64);
    for (const char* key : {"owed/0/few", "owed/1/few"}) state[key] = torch::zeros({96, 64});
    run.exchange.load(state);
    run.take_steps(kEvery);
    const std::vector<std::string> history = run.exchange.figures().history;
    ASSERT_EQ(history.size(), 1U);
    EXPECT_NE(history[0].find(" in place of several"), std::string::npos) << history[0];
  });
}

TEST(LinkScale, FollowsWhatIsMeasured) {
  const auto of = [](Period period, double scale = 1) { return rescaled(scale, period); };
  // As it is: the whole of the link is seen.
  EXPECT_EQ(of({.early_s = 3, .late_s = 3, .table_s = 1}), 3);
  EXPECT_EQ(of({.early_s = 3, .late_s = 3, .table_s = 12}), 0.25);
  EXPECT_EQ(of({.early_s = 1, .late_s = 1.9, .table_s = 1}), 1);
  EXPECT_EQ(of({.early_s = 3, .late_s = 3, .table_s = 1}, 2), 2);
  // Compressed: faster than the table says nothing, slower does; so does a change.
  EXPECT_EQ(of({.early_s = 0.1, .late_s = 0.1, .table_s = 1, .codec_s = 1}), 1);
  EXPECT_EQ(of({.early_s = 9, .late_s = 9, .table_s = 2, .codec_s = 1}), 4);
  EXPECT_EQ(of({.early_s = 1, .late_s = 5, .table_s = 1, .codec_s = 9}, 2), 10);
  EXPECT_EQ(of({.early_s = 5, .late_s = 1, .table_s = 1, .codec_s = 9}, 10), 2);
  // Nobody measured, or there is no table.
  EXPECT_EQ(of({.early_s = 0, .late_s = 0, .table_s = 1}, 2), 2);
  EXPECT_EQ(of({.early_s = 1, .late_s = 1, .table_s = 0}, 2), 2);
}

TEST(LinkScale, TellsFirstStepsFromLast) {
  double seconds = 0;
  int looks = 0;
  LinkWatch watch({.expected = {},
                   .took = [&](auto step) { return seconds * static_cast<double>(step.size()); },
                   .waited_for_core = [&] { return ++looks, 0; }});
  constexpr int kLast = 20;
  for (int step = 1; step <= kLast; ++step) {
    watch.begin_step(kLast + 1 - step);  // takes the two exchanges of the step before
    seconds = step;
    watch.add({}, 0);
    watch.add({}, 0);
  }
  watch.begin_step(0);
  EXPECT_EQ(watch.early(), std::vector<double>({4, 6, 8, 10, 12}));  // a period's very first is left out
  EXPECT_EQ(watch.late(), std::deque<double>({32, 34, 36, 38, 40}));
  EXPECT_EQ(looks, 2 * (LinkWatch::kSteps + 1));  // around those, and nothing of the steps between
  EXPECT_EQ(compress::middle(watch.early()), 8);
  EXPECT_EQ(compress::middle({0, 3, 0, 1, 2}), 2);  // what is not known does not count
  EXPECT_EQ(compress::middle({0}), 0);
  watch.restart();
  EXPECT_TRUE(watch.early().empty() && watch.late().empty());
}

}  // namespace
}  // namespace lockstep
