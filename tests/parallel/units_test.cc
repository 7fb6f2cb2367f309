// Parameters gathered in units, against DataParallel: the same bits on any number of workers, whatever the
// units are, within a budget.
#include "lockstep/parallel/units.h"

#include <gtest/gtest.h>

#include "comm/expect_error.h"
#include "comm/wire_ranks.h"
#include "lockstep/data/loader.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/parallel/sharded.h"
#include "parallel/unit_models.h"

namespace lockstep {
namespace {

using testing::alike_on;
using testing::copies;
using testing::equal;
using testing::expect_error;
using testing::gathered_options;
using testing::on_threads;
using testing::train_ddp;
using testing::train_units;
using testing::UnitNet;
using testing::UnitRun;

TEST(Units, HaveTheBitsOfDataParallelOnAnyNumberOfWorkers) {
  const auto expected = train_ddp();
  for (const int workers : {1, 2, 3, 4})
    EXPECT_TRUE(equal(train_units(UnitRun{}, workers), expected)) << workers << " workers";
}

// The last projection is the embedding: one module in two units, neither of which is inside the other.
struct TiedByModule : torch::nn::Module {
  torch::nn::Embedding tok = register_module("tok", torch::nn::Embedding(11, 8));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(8, 8));
  Unit first{{tok.ptr()}}, last{{middle.ptr(), tok.ptr()}};
  TiedByModule() {
    const torch::NoGradGuard no_grad;
    for (auto& p : parameters()) p.copy_(torch::linspace(-1, 1.5, p.numel()).view(p.sizes()));
  }
  torch::Tensor loss(int lane, int step) {
    const auto words = torch::arange(6).mul(lane + 1).add(3 * step).remainder(11);
    const auto x = first.run([this](const torch::Tensor& numbers) { return tok->forward(numbers); }, words);
    const auto scores = last.run(
        [this](const torch::Tensor& h) { return torch::matmul(middle->forward(h), tok->weight.t()); }, x);
    return torch::cross_entropy_loss(scores, words.flip(0));
  }
};

TEST(Units, AModuleMayBeInTwoOfThem) {
  const auto trained = [](const Group& group, const char* name, const StrategyOptions& options) {
    TiedByModule net;
    const auto strategy = make_strategy(name, net, group, options);
    const auto optimizer = testing::unit_adamw(*strategy);
    for (int step = 0; step < 3; ++step) {
      testing::unit_lanes(group, 4, step, net, *strategy);
      optimizer->step();
    }
    const auto whole = strategy->whole();
    return copies(net);
  };
  const auto expected = trained(thread_groups(1)[0], "ddp", testing::plain_options());
  for (const int workers : {2, 3})
    on_threads(thread_groups(workers), [&](const Group& group) {
      EXPECT_TRUE(equal(trained(group, "zero3", gathered_options()), expected)) << workers << " workers";
    });
}

TEST(Units, WorkersWithoutLanesServeTheOthers) {
  const auto expected = train_ddp({.lanes = 9});
  for (const int workers : {5, 7}) {  // of whom some have no lane
    EXPECT_TRUE(equal(train_units(UnitRun{.lanes = 9}, workers), expected)) << workers << " workers";
  }
}

// Eight lanes of which a step has one at the end: all workers but the first have none there. In front of it
// each step's lanes are looked at by a forward alone.
std::vector<torch::Tensor> through_a_loader(const std::string& name, const StrategyOptions& options,
                                            int workers) {
  return alike_on(thread_groups(workers, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
    UnitNet net;
    const auto strategy = make_strategy(name, net, group, options);
    const auto optimizer = testing::unit_adamw(*strategy);
    auto data = std::make_shared<testing::SmallExamples>(18);
    for (auto& step :
         loader(data, group, {.lanes = 8, .lane_batch = 2, .last_step = LastStep::short_, .epochs = 2})) {
      net.eval();
      for (const auto& lane : step) {
        const torch::NoGradGuard no_grad;
        EXPECT_TRUE(torch::isfinite(net.loss(lane.index, 3)).item<bool>());
      }
      net.train();
      strategy->meet();
      for (auto& lane : step) {
        const auto scope = strategy->lane(lane);
        net.loss(lane.index, static_cast<int>(step.number)).backward();
      }
      EXPECT_GT(clip_grad_norm_(*strategy, 0.3), 0);
      optimizer->step();
    }
    const auto whole = strategy->whole();
    return copies(net);
  });
}

TEST(Units, WorkersWithoutLanesServeTheOthersThroughALoader) {
  const auto expected = through_a_loader("ddp", testing::plain_options(), 1);
  for (const int workers : {2, 3}) {
    EXPECT_TRUE(equal(through_a_loader("zero3", gathered_options(), workers), expected))
        << workers << " workers";
    for (const std::string stage : {"zero1", "zero2", "zero3"})  // nothing is gathered
      EXPECT_TRUE(equal(through_a_loader(stage, testing::plain_options(), workers), expected))
          << stage << " on " << workers << " workers";
  }
}

// A plain loop: accumulation, a worker that skips a backward, an evaluation of which it has less.
std::vector<torch::Tensor> in_a_plain_loop(const std::string& name, const StrategyOptions& options,
                                           int workers) {
  return alike_on(thread_groups(workers), [&](const Group& group) {
    UnitNet net;
    const auto strategy = make_strategy(name, net, group, options);
    const auto optimizer = testing::unit_adamw(*strategy);
    double seen = 0;
    for (int step = 0; step < 4; ++step) {
      optimizer->zero_grad();
      {
        const auto guard = strategy->no_sync();
        net.loss(group.rank() + 10, step).backward();
      }
      if (step != 2 || group.rank() + 1 != group.size()) net.loss(group.rank(), step).backward();
      optimizer->step();
      const torch::NoGradGuard no_grad;
      net.eval();
      for (int batch = group.rank(); batch < 2 * group.size() - 1; batch += group.size())
        seen += net.loss(batch, step).item<double>();
      net.train();
      strategy->meet();
    }
    const auto whole = strategy->whole();
    auto all = copies(net);
    all.push_back(torch::scalar_tensor(group.all_reduce(seen), torch::kFloat64));
    return all;
  });
}

TEST(Units, AccumulateSkipAndEvaluate) {
  for (const int workers : {1, 2, 3})
    EXPECT_TRUE(equal(in_a_plain_loop("zero3", gathered_options(), workers),
                      in_a_plain_loop("ddp", testing::plain_options(), workers)))
        << workers;
}

TEST(Units, HaveTheSameBitsUnderEveryOptimizerAndWithClipping) {
  const auto momentum = [](GradientSource& source) -> std::unique_ptr<Optimizer> {
    return std::make_unique<SGD>(source, SGDOptions{.lr = 0.05, .momentum = 0.9});
  };
  const auto lamb = [](GradientSource& source) -> std::unique_ptr<Optimizer> {
    return std::make_unique<LAMB>(source, LAMBOptions{.lr = 0.02});
  };
  for (const testing::MakeOptimizer& make : std::vector<testing::MakeOptimizer>{momentum, lamb}) {
    const UnitRun run{.make = make, .clip = 0.3};
    EXPECT_TRUE(equal(train_units(run, 3), train_ddp(run)));
  }
}

TEST(Units, HaveTheSameBitsAcrossAWire) {
  const auto expected = train_ddp();
  UnitRun run;
  run.options.parameters = ParameterAccess::chosen;  // nobody has memory in common
  EXPECT_TRUE(equal(alike_on(testing::tcp_groups(3, {}), [&](const Group& g) { return train_units(run, g); }),
                    expected));
}

TEST(Units, HoldTheirShareAndStayWithinTheBudget) {
  for (const int workers : {1, 2, 4}) {
    UnitRun run;
    run.look = [](const Strategy& strategy, const Group& group) {
      const UnitNet whole;
      std::size_t all = 0;
      std::size_t unit = 0;  // the largest: a block
      std::size_t apart = whole.alone.nbytes();
      for (const auto& p : whole.frozen->parameters()) apart += p.nbytes();
      for (const auto& p : whole.parameters()) all += p.nbytes();
      all -= whole.head->weight.nbytes();  // tied
      for (const auto& p : whole.blocks[0]->parameters()) unit += p.nbytes();
      const auto shares = static_cast<std::size_t>(group.size());
      const std::size_t gaps = 40 * (64 + 8 * shares);  // one a parameter and a bucket, at most
      EXPECT_LE(strategy.parameter_bytes(), (all - apart) / shares + apart + gaps) << group.size();
      EXPECT_GE(strategy.parameter_bytes(), (all - apart) / shares + apart);
      // Two blocks, or one with the unit in it and the next; the second use of the last block stays
      // meanwhile.
      EXPECT_GE(strategy.gathered_bytes(), unit);
      EXPECT_LE(strategy.gathered_bytes(), 3 * (unit + gaps));
    };
    train_units(run, workers);
  }
}

TEST(Units, ABudgetThatIsGivenIsNeverExceeded) {
  const auto expected = train_ddp();
  UnitRun run;
  run.options.gathered_mb = 4.0 / 1024;  // 4 KiB: a block is 1.4
  run.look = [](const Strategy& strategy, const Group&) {
    EXPECT_LE(strategy.gathered_bytes(), 4096u);
    EXPECT_GT(strategy.gathered_bytes(), 2048u);  // the next unit came while one computed
  };
  EXPECT_TRUE(equal(train_units(run, 2), expected));

  run.options.gathered_mb = 1.0 / 1024;
  run.look = {};
  on_threads(thread_groups(2), [&](const Group& group) {
    expect_error<UsageError>([&] { train_units(run, group); }, {"1 KiB", "'block", "gathered_mb"});
  });
}

TEST(Units, AModelWithoutThemIsRefused) {
  on_threads(thread_groups(2), [](const Group& group) {
    testing::SmallNet net;
    expect_error<UsageError>([&] { Sharded(net, group, ShardStage::parameters, gathered_options()); },
                             {"zero3", "shard(block)", "zero2"});
  });
}

// What is written under whole() is there afterwards, for all.
TEST(Units, WeightsAreLoadedUnderWhole) {
  on_threads(thread_groups(3), [](const Group& group) {
    UnitNet net;
    Sharded sharded(net, group, ShardStage::parameters, gathered_options());
    {
      const auto whole = sharded.whole();
      const torch::NoGradGuard no_grad;
      for (auto& p : net.parameters()) p.fill_(0.25);
    }
    const auto whole = sharded.whole();
    for (const auto& p : net.parameters()) EXPECT_TRUE(p.eq(0.25).all().item<bool>());
  });
}

// A function that needs whole parameters may be called by one that does.
TEST(Units, WholeInsideWholeChangesNothing) {
  on_threads(thread_groups(2), [](const Group& group) {
    UnitNet net;
    Sharded sharded(net, group, ShardStage::parameters, gathered_options());
    {
      const auto whole = sharded.whole();
      const auto before = copies(net);
      { const auto inner = sharded.whole(); }
      const auto after = copies(net);
      ASSERT_EQ(after.size(), before.size());
      for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(after[i].equal(before[i])) << i;
      const torch::NoGradGuard no_grad;
      for (auto& p : net.parameters()) p.fill_(0.5);
    }
    const auto whole = sharded.whole();
    for (const auto& p : net.parameters()) EXPECT_TRUE(p.eq(0.5).all().item<bool>());
  });
}

// One after the other, in the memory of a bucket; what was there comes back in the next step.
TEST(Units, EachIsWholeInItsTurn) {
  std::vector<torch::Tensor> expected;
  {
    const UnitNet net;
    expected = copies(net);
  }
  on_threads(thread_groups(3), [&](const Group& group) {
    UnitNet net;
    Sharded sharded(net, group, ShardStage::parameters, gathered_options());
    for (int round = 0; round < 2; ++round) {
      const auto each = sharded.each_whole();
      std::size_t i = 0;
      for (const auto& p : net.parameters()) {
        each.bring(p);
        EXPECT_TRUE(p.equal(expected[i++]));
      }
    }
    EXPECT_LE(sharded.gathered_bytes(), 2000u);  // a bucket, of 400 bytes or one parameter
    const auto whole = sharded.whole();
    const auto inside = sharded.each_whole();  // changes nothing
    inside.bring(net.alone);
    for (const auto& p : net.parameters()) EXPECT_TRUE(has_memory(p));
  });
}

// What goes wrong in it is told, once.
TEST(Units, EachOfWorkersThatBringDifferentOnesIsToldSo) {
  on_threads(thread_groups(2), [](const Group& group) {
    UnitNet net;
    Sharded sharded(net, group, ShardStage::parameters, gathered_options());
    expect_error<MismatchError>(
        [&] {
          const auto each = sharded.each_whole();
          each.bring(group.rank() == 0 ? net.blocks[0]->up->weight : net.blocks[1]->up->weight);
        },
        {"needs the parameters of unit 'block0'", "'block1"});
  });
}

// What others have let go meanwhile comes again.
TEST(Units, EachIsBroughtAgainBehindWhole) {
  on_threads(thread_groups(2), [](const Group& group) {
    UnitNet net;
    const torch::Tensor expected = net.blocks[0]->up->weight.clone();
    Sharded sharded(net, group, ShardStage::parameters, gathered_options());
    const auto each = sharded.each_whole();
    each.bring(net.blocks[0]->up->weight);
    { const auto whole = sharded.whole(); }
    each.bring(net.blocks[0]->up->weight);
    ASSERT_TRUE(has_memory(net.blocks[0]->up->weight));
    EXPECT_TRUE(net.blocks[0]->up->weight.equal(expected));
  });
}

// Who asks for parameters that could not be gathered is told so each time, and is never given memory that
// nobody has filled.
TEST(Units, WhatCouldNotBeGatheredIsNotThereTheSecondTimeEither) {
  for (const bool at_once : {false, true})
    on_threads(thread_groups(3, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
      UnitNet net;
      Sharded sharded(net, group, ShardStage::parameters, gathered_options());
      if (group.rank() == 2) return sharded.meet();  // and leaves, when the others begin
      const auto gather = [&] {
        if (at_once) {
          const auto whole = sharded.whole();
          ADD_FAILURE() << "whole without the third worker's part";
        } else {
          const auto each = sharded.each_whole();
          each.bring(net.blocks[0]->up->weight);
          ADD_FAILURE() << "there without the third worker's part";
        }
      };
      for (int time = 0; time < 3; ++time) EXPECT_THROW(gather(), PeerError) << time;
    });
}

TEST(Units, WorkersThatRunDifferentUnitsAreNamed) {
  on_threads(thread_groups(2), [](const Group& group) {
    UnitNet net;
    Sharded sharded(net, group, ShardStage::parameters, gathered_options());
    const auto x = torch::ones({6, UnitNet::kWidth});
    expect_error<MismatchError>([&] { net.blocks[static_cast<std::size_t>(group.rank())].forward(x); },
                                {"rank 0 needs", "'block0'", "rank 1 needs", "'block1'"});
  });
}

TEST(Units, AWorkerThatIsGoneInsideAGatherIsAnErrorAtOnce) {
  on_threads(thread_groups(3), [](const Group& group) {
    if (group.rank() == 2) {
      UnitNet net;
      Sharded sharded(net, group, ShardStage::parameters, gathered_options());
      return;  // leaves
    }
    UnitNet net;
    Sharded sharded(net, group, ShardStage::parameters, gathered_options());
    EXPECT_THROW(net.blocks[0].forward(torch::ones({6, UnitNet::kWidth})), PeerError);
  });
}

}  // namespace
}  // namespace lockstep
