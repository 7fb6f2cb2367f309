// Sharded at every stage against DataParallel: the same bits, whatever the model, the loop and the number of
// workers.
#include "comm/wire_ranks.h"
#include "lockstep/compress/bf16.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/grad_scaler.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "parallel/sharded_case.h"

namespace lockstep::testing {
namespace {

class ShardedBits : public ShardedAt {};
INSTANTIATE_TEST_SUITE_P(Stage, ShardedBits, every_stage(), stage_name);

TEST_P(ShardedBits, HasTheBitsOfDataParallelOnAnyNumberOfWorkers) {
  for (const MakeOptimizer make : {adamw, momentum}) {
    const Tensors expected = in_lanes("ddp", make, 1, 8);
    for (const int workers : {1, 2, 3, 4, 8})
      EXPECT_TRUE(equal(in_lanes(name(), make, workers, 8), expected)) << workers << " workers";
  }
}

TEST_P(ShardedBits, WorkersWithoutLanesGetTheUpdates) {
  const Tensors expected = in_lanes("ddp", adamw, 1, 9);
  for (const int workers : {5, 7, 8})  // of whom some have no lane
    EXPECT_TRUE(equal(in_lanes(name(), adamw, workers, 9), expected)) << workers << " workers";
}

TEST_P(ShardedBits, HasThemWithTheOptimizersStateOnDisk) {
  const std::string folder = ::testing::TempDir();
  const auto adam = [](const Offload& offload) {
    return [offload](GradientSource& source) -> std::unique_ptr<Optimizer> {
      return std::make_unique<AdamW>(source, AdamWOptions{.lr = 0.02, .offload = offload});
    };
  };
  const auto lamb = [](const Offload& offload) {
    return [offload](GradientSource& source) -> std::unique_ptr<Optimizer> {
      return std::make_unique<LAMB>(source, LAMBOptions{.lr = 0.02, .offload = offload});
    };
  };
  for (const int workers : {1, 3}) {
    EXPECT_TRUE(
        equal(in_lanes(name(), adam({.folder = folder}), workers, 8), in_lanes("ddp", adam({}), 1, 8)));
    EXPECT_TRUE(
        equal(in_lanes(name(), lamb({.folder = folder}), workers, 8), in_lanes("ddp", lamb({}), 1, 8)));
  }
}

// A plain loop with accumulation, clipping, and a step in which one worker skips its backward.
Tensors in_a_plain_loop(const std::string& strategy, int workers) {
  return alike_on(thread_groups(workers), [&](const Group& group) {
    OddNet net;
    const auto model = make_strategy(strategy, net, group, small());
    const auto optimizer = adamw(*model);
    double norms = 0;
    for (int step = 0; step < 6; ++step) {
      optimizer->zero_grad();
      {
        const auto guard = model->no_sync();
        net.loss(group.rank() + 10, step).backward();
      }
      if (step != 3 || group.rank() + 1 != group.size()) net.loss(group.rank(), step).backward();
      norms += clip_grad_norm_(*model, 0.5, step % 2 == 0 ? 2.0 : std::numeric_limits<double>::infinity());
      optimizer->step();
    }
    Tensors all = copies(net);
    all.push_back(torch::scalar_tensor(norms, torch::kFloat64));
    return all;
  });
}

TEST_P(ShardedBits, AccumulatesAndClipsWithTheBitsOfDataParallel) {
  for (const int workers : {1, 2, 3, 5})
    EXPECT_TRUE(equal(in_a_plain_loop(name(), workers), in_a_plain_loop("ddp", workers))) << workers;
}

// Half of a run, its state, and the other half under another strategy and another number of workers.
TEST_P(ShardedBits, StateReadsTheSameUnderAnyCut) {
  struct Part {
    std::string strategy;
    int workers;
  };
  const Tensors expected = in_lanes("ddp", adamw, 1, 8);
  for (const auto& [before, after] : std::vector<std::pair<Part, Part>>{{{name(), 3}, {"ddp", 1}},
                                                                        {{"ddp", 2}, {name(), 3}},
                                                                        {{name(), 4}, {name(), 2}},
                                                                        {{name(), 2}, {"zero2", 3}}}) {
    StateDict state;
    Tensors weights;
    on_threads(thread_groups(before.workers), [&](const Group& group) {
      OddNet net;
      const auto model = make_strategy(before.strategy, net, group, small());
      const auto optimizer = adamw(*model);
      for (int step = 0; step < 3; ++step) {
        lanes_of_a_step(group, 8, step, net, *model);
        optimizer->step();
      }
      const StateDict whole = optimizer->state_dict(group.rank() == 0);
      EXPECT_EQ(whole.empty(), group.rank() != 0);
      if (group.rank() != 0) return;
      state = whole;
      weights = copies(net);
    });
    EXPECT_EQ(state.at("exp_avg/conv.weight").sizes(), (std::vector<std::int64_t>{5, 3, 3, 3}));
    EXPECT_EQ(state.at("step/never").item<std::int64_t>(), 0);
    EXPECT_EQ(state.at("step/single").item<std::int64_t>(), 3);
    const Tensors result = alike_on(thread_groups(after.workers), [&](const Group& group) {
      OddNet net;
      {
        const torch::NoGradGuard no_grad;
        std::size_t k = 0;
        for (auto& p : net.parameters()) p.copy_(weights[k++]);
        for (auto& b : net.buffers()) b.copy_(weights[k++]);
      }
      const auto model = make_strategy(after.strategy, net, group, small());
      const auto optimizer = adamw(*model);
      optimizer->load_state_dict(state);
      for (int step = 3; step < 5; ++step) {
        lanes_of_a_step(group, 8, step, net, *model);
        optimizer->step();
      }
      return copies(net);
    });
    EXPECT_TRUE(equal(result, expected))
        << before.strategy << " " << before.workers << " → " << after.strategy << " " << after.workers;
  }
}

// One copy a machine, in which the others' updates arrive: equal and unequal machines, ranks in any order.
TEST(ShardedBitsOnce, SeveralMachinesHaveACopyEach) {
  const Tensors expected = in_lanes("ddp", adamw, 1, 8);
  for (const std::vector<int>& nodes :
       std::vector<std::vector<int>>{{0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 0, 1, 2}}) {
    const Tensors result = alike_on(node_groups(nodes, net::Security::plaintext), [&](const Group& group) {
      return train_in_lanes("zero3", adamw, group, 8);
    });
    EXPECT_TRUE(equal(result, expected)) << ::testing::PrintToString(nodes);
  }
}

// Weights are loaded on every worker, as elsewhere: the masters of a worker take over what that one has
// written.
TEST_P(ShardedBits, MastersTakeOverWhatWasLoaded) {
  const auto train = [](const std::string& strategy, const Group& group) {
    WideNet net;
    net.to(torch::kBFloat16);
    const auto model = make_strategy(strategy, net, group, kTenBuckets);
    SGD optimizer(*model, {.lr = 0.01, .master_weights = MasterWeights::f32});
    for (int step = 0; step < 3; ++step) {
      if (step == 2) {
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& weight : net.weights) weight.fill_(0.25);
        group.barrier();
      }
      optimizer.zero_grad();
      net.loss(group.rank()).backward();
      optimizer.step();
    }
    group.barrier();
    return copies(net);
  };
  const auto on_two = [&](const std::string& strategy) {
    return alike_on(thread_groups(2), [&](const Group& group) { return train(strategy, group); });
  };
  EXPECT_TRUE(equal(on_two(name()), on_two("ddp")));
}

// Weights on both sides of a norm, the last of which only one worker uses.
struct NormedNet : torch::nn::Module {
  SyncBatchNorm norm{nullptr};
  std::shared_ptr<torch::nn::Module> tail = std::make_shared<torch::nn::Module>();
  torch::Tensor first;
  std::vector<torch::Tensor> weights;
  torch::Tensor now_and_then;
  NormedNet() {
    first = register_parameter("first", torch::ones({4}));
    norm = register_module("norm", SyncBatchNorm(4));
    register_module("tail", tail);
    for (int k = 0; k < 6; ++k)
      weights.push_back(tail->register_parameter("weight" + std::to_string(k), torch::ones({4})));
    now_and_then = tail->register_parameter("now_and_then", torch::ones({4}));
  }
  torch::Tensor loss(int rank) {
    torch::Tensor x = norm(torch::arange(12).view({3, 4}) * first * (rank + 1));
    for (const torch::Tensor& weight : weights) x = x * weight + 1;
    if (rank == 0) x = x * now_and_then;
    return x.square().mean();
  }
};

// The first bucket leaves at the end of backward where its parameter is not used. Nobody may wait for it in
// the middle of his own, where SyncBatchNorm waits for everybody.
TEST_P(ShardedBits, UnusedParametersBehindSyncBatchNormHangNobody) {
  const auto train = [](const std::string& strategy) {
    return alike_on(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
      NormedNet net;
      const auto model =
          make_strategy(strategy, net, group, {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6});
      const auto optimizer = momentum(*model);
      for (int step = 0; step < 3; ++step) {
        optimizer->zero_grad();
        net.loss(group.rank()).backward();
        optimizer->step();
      }
      return copies(net);
    });
  };
  EXPECT_TRUE(equal(train(name()), train("ddp")));
}

// Backward fails in the middle, on every worker, when some buckets have left: the step is taken again.
TEST_P(ShardedBits, AStepThatFailedHalfwayIsTakenAgain) {
  const auto train = [](const std::string& strategy) {
    return alike_on(thread_groups(2), [&](const Group& group) {
      WideNet net;
      const auto model = make_strategy(strategy, net, group, kTenBuckets);
      const auto optimizer = momentum(*model);
      bool fails = false;
      const auto backward = [&](int step) {
        torch::Tensor x = torch::full({4096}, 0.5 + group.rank() + step);
        for (std::size_t k = 0; k < net.weights.size(); ++k) {
          x = x * net.weights[k] + 1;
          if (k == 4)
            x.register_hook([&](const torch::Tensor& gradient) {
              if (fails) throw std::runtime_error("half of it");
              return gradient;
            });
        }
        x.mean().backward();
      };
      for (int step = 0; step < 4; ++step) {
        if (step == 2) {
          fails = true;
          EXPECT_ANY_THROW(backward(step));
          fails = false;
          model->reset();
        }
        optimizer->zero_grad();
        if (step % 2 == 1) {
          const auto guard = model->no_sync();
          backward(step + 1);
        }
        backward(step);
        optimizer->step();
      }
      return copies(net);
    });
  };
  EXPECT_TRUE(equal(train(name()), train("ddp")));
}

// Types of several sizes, one of whose buckets is empty, in the same slots; compressed too.
TEST_P(ShardedBits, EmptyBucketsAndCompressedOnesHaveTheBitsOfZero1) {
  struct Mixed : WideNet {
    Mixed() {
      register_parameter("no_doubles", torch::zeros({0, 2}, torch::kFloat64));
      halves = register_parameter("halves", torch::ones({77}, torch::kBFloat16));
    }
    torch::Tensor halves;
  };
  for (const bool compressed : {false, true}) {
    const auto train = [&](const std::string& strategy) {
      return alike_on(thread_groups(3), [&](const Group& group) {
        Mixed net;
        StrategyOptions options = kTenBuckets;
        if (compressed) options.exchange = bf16_exchange;
        const auto model = make_strategy(strategy, net, group, options);
        SGD optimizer(*model, {.lr = 0.01});
        GradScaler scaler(optimizer);
        for (int step = 0; step < 4; ++step) {
          torch::Tensor loss = net.loss(group.rank()) + net.halves.square().sum().to(torch::kFloat32);
          if (step == 1 && group.rank() == 2) loss = loss * std::numeric_limits<float>::infinity();
          optimizer.zero_grad();
          scaler.scale(loss).backward();
          scaler.step();
        }
        return copies(net);
      });
    };
    EXPECT_TRUE(equal(train(name()), train(compressed ? "zero1" : "ddp"))) << compressed;
  }
}

// 16 bits with master weights under LARS and LAMB, sums in either type, lanes of weight 0, and lanes
// measured.
TEST_P(ShardedBits, SixteenBitsUnderLayerwiseOptimizersHaveTheBitsOfDataParallel) {
  struct Halves : WideNet {
    Halves() {
      to(torch::kBFloat16);
      register_parameter("wide", torch::ones({5}));
    }
  };
  for (const ReducePrecision precision : {ReducePrecision::same, ReducePrecision::f32})
    for (const bool lamb : {false, true}) {
      const auto train = [&](const std::string& strategy, int workers) {
        return alike_on(thread_groups(workers), [&](const Group& group) {
          Halves net;
          StrategyOptions options = kTenBuckets;
          options.reduce_precision = precision;
          options.measure_lanes = true;
          const auto model = make_strategy(strategy, net, group, options);
          std::unique_ptr<Optimizer> optimizer;
          if (lamb)
            optimizer = std::make_unique<LAMB>(
                *model, LAMBOptions{.lr = 0.01, .vectors = true, .master_weights = MasterWeights::f32});
          else
            optimizer = std::make_unique<LARS>(
                *model, LARSOptions{.lr = 0.5, .vectors = true, .master_weights = MasterWeights::f32});
          std::vector<double> squares(4, 0.0);
          const LaneRange mine = lanes_of(group.rank(), group.size(), 4);
          for (int step = 0; step < 4; ++step) {
            for (int lane = mine.first; lane < mine.first + mine.count; ++lane) {
              const auto scope = model->lane({.seed = 3,
                                              .step = step,
                                              .index = lane,
                                              .weight = lane == step ? 0.0 : 1.0 + lane,
                                              .total_weight = 10.0 - 1.0 - step,
                                              .first = lane == mine.first,
                                              .last = lane + 1 == mine.first + mine.count});
              net.loss(lane + step).backward();
            }
            model->synchronize();
            const std::vector<double> own = model->lane_squares();
            for (std::size_t k = 0; k < own.size(); ++k)
              squares[static_cast<std::size_t>(mine.first) + k] += own[k];
            clip_grad_norm_(*model, 0.5);
            optimizer->step();
          }
          group.all_reduce(squares);
          Tensors all = copies(net);
          all.push_back(torch::tensor(squares, torch::kFloat64));
          return all;
        });
      };
      const Tensors expected = train("ddp", 1);
      for (const int workers : {1, 2, 3, 4})
        EXPECT_TRUE(equal(train(name(), workers), expected))
            << workers << " workers, " << (lamb ? "LAMB" : "LARS") << ", " << static_cast<int>(precision);
    }
}

}  // namespace
}  // namespace lockstep::testing
