// What Sharded keeps at every stage: a share of the model's state, in memory whose place and end are known.
#include <chrono>
#include <cstdlib>
#include <thread>

#include "comm/expect_error.h"
#include "comm/wire_ranks.h"
#include "lockstep/parallel/data_parallel.h"
#include "parallel/sharded_case.h"

namespace lockstep::testing {
namespace {

class ShardedMemory : public ShardedAt {};
INSTANTIATE_TEST_SUITE_P(Stage, ShardedMemory, every_stage(), stage_name);

TEST_P(ShardedMemory, KeepsItsShareOfTheStateAlone) {
  on_threads(thread_groups(4), [this](const Group& group) {
    SmallNet net;
    SmallNet other;
    Sharded sharded(net, group, GetParam());
    DataParallel ddp(other, group);
    const AdamW part(sharded);
    const AdamW whole(ddp);
    std::vector<std::int64_t> bytes = {static_cast<std::int64_t>(part.state_bytes())};
    EXPECT_LT(bytes[0], static_cast<std::int64_t>(whole.state_bytes()) / 2);
    group.all_reduce(bytes);
    EXPECT_EQ(bytes[0], static_cast<std::int64_t>(whole.state_bytes()));
  });
}

// Slices cover every element once, and lie where the parameters and the gradients do.
TEST_P(ShardedMemory, SlicesAreACutOfTheParameters) {
  on_threads(thread_groups(3), [this](const Group& group) {
    OddNet net;
    Sharded sharded(net, group, GetParam(), small());
    const std::vector<NamedTensor> parameters = sharded.parameters();
    const std::span<const Slice> slices = sharded.slices();
    ASSERT_EQ(slices.size(), parameters.size());
    std::vector<std::int64_t> covered;
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const torch::Tensor& whole = parameters[i].tensor;
      EXPECT_EQ(slices[i].name, parameters[i].name);
      EXPECT_EQ(slices[i].whole, whole.sizes().vec());
      EXPECT_EQ(slices[i].elements.count(), static_cast<std::size_t>(slices[i].parameter.numel()));
      EXPECT_FALSE(slices[i].gradient.defined());
      for (std::int64_t k = 0; k < whole.numel(); ++k)
        covered.push_back(static_cast<std::size_t>(k) >= slices[i].elements.begin &&
                          static_cast<std::size_t>(k) < slices[i].elements.end);
      const torch::Tensor flat = whole.detach().as_strided({whole.numel()}, {1});
      EXPECT_TRUE(torch::equal(slices[i].parameter,
                               flat.narrow(0, static_cast<std::int64_t>(slices[i].elements.begin),
                                           static_cast<std::int64_t>(slices[i].elements.count()))));
    }
    group.all_reduce(covered);
    EXPECT_EQ(covered, std::vector<std::int64_t>(covered.size(), 1));
  });
}

// What the workers wait for behind the optimizer is in the log too.
TEST_P(ShardedMemory, TellsHowItsUpdatesWereShared) {
  on_threads(thread_groups(2), [this](const Group& group) {
    SmallNet net, other;
    Sharded sharded(net, group, GetParam(), small());
    DataParallel ddp(other, group, small());
    SGD optimizer(sharded), whole(ddp);
    for (int step = 0; step < 2; ++step) {
      net.forward(small_batch(group.rank(), step)).square().mean().backward();
      sharded.synchronize();
      EXPECT_TRUE(sharded.last_exchange().shared.empty());  // those of the step before are forgotten
      optimizer.step();
      const ExchangeLog& log = sharded.last_exchange();
      if (GetParam() == ShardStage::parameters) {  // all see one copy
        EXPECT_TRUE(log.shared.empty());
        continue;
      }
      ASSERT_EQ(log.shared.size(), log.buckets.size());
      for (std::size_t b = 0; b < log.shared.size(); ++b) {
        EXPECT_EQ(log.shared[b].bytes, log.buckets[b].bytes);
        EXPECT_GE(log.shared[b].start_ns, log.share_begin_ns);
        EXPECT_GE(log.shared[b].running_ns, log.shared[b].start_ns);
        EXPECT_GE(log.shared[b].end_ns, log.shared[b].running_ns);
        EXPECT_LE(log.shared[b].end_ns, log.share_end_ns);
        EXPECT_FALSE(log.shared[b].algorithm.empty());
      }
      EXPECT_GE(log.share_begin_ns, log.wait_end_ns);
    }
    other.forward(small_batch(group.rank(), 0)).square().mean().backward();
    whole.step();
    EXPECT_TRUE(ddp.last_exchange().shared.empty());
  });
}

TEST_P(ShardedMemory, OnlyWhatWasUpdatedHasANewVersion) {
  OddNet net;
  Sharded sharded(net, thread_groups(1)[0], GetParam());
  SGD optimizer(sharded);
  const auto never = net.never._version();
  const auto second = net.second->weight._version();
  net.loss(0, 0).backward();
  optimizer.step();
  EXPECT_EQ(net.never._version(), never);
  EXPECT_GT(net.second->weight._version(), second);
}

// Slices that somebody kept can be read when the strategy is gone.
TEST_P(ShardedMemory, KeptGradientsHoldTheirMemory) {
  SmallNet net;
  torch::Tensor kept;
  torch::Tensor then;
  {
    Sharded sharded(net, thread_groups(1)[0], GetParam());
    net.forward(small_batch(0, 0)).square().mean().backward();
    kept = sharded.slices()[0].gradient;
    then = kept.clone();
  }
  EXPECT_TRUE(torch::equal(kept, then));
}

TEST(ShardedMemoryOnce, GradientsHaveMemoryOnlyWhileTheyTravel) {
  on_threads(thread_groups(4), [](const Group& group) {
    for (const bool accumulates : {false, true}) {
      WideNet net;
      Sharded sharded(net, group, ShardStage::gradients, kTenBuckets);
      SGD optimizer(sharded);
      for (int step = 0; step < 3; ++step) {
        if (accumulates) {
          const auto guard = sharded.no_sync();
          net.loss(group.rank() + 4).backward();
        }
        net.loss(group.rank()).backward();
        optimizer.step();
      }
      // Its part, the bucket that is filled and those under way; or, where sums wait, all.
      const std::size_t most = kWideBytes / 4 + (1 + 2) * kWideBytes / 10;
      if (accumulates)
        EXPECT_GE(sharded.gradient_bytes(), kWideBytes);
      else
        EXPECT_LE(sharded.gradient_bytes(), most);
      EXPECT_GE(sharded.gradient_bytes(), kWideBytes / 4);
    }
  });
}

// Buckets leave in their order: behind one whose parameter is not used they wait, each in memory of its own.
TEST(ShardedMemoryOnce, BucketsBehindOneThatWaitsHaveMemoryEach) {
  on_threads(thread_groups(4), [](const Group& group) {
    WideNet net;
    net.register_parameter("never", torch::zeros({4096}));
    Sharded sharded(net, group, ShardStage::gradients, kTenBuckets);
    SGD optimizer(sharded);
    net.loss(group.rank()).backward();
    optimizer.step();
    EXPECT_GE(sharded.gradient_bytes(), kWideBytes + kWideBytes / 4);
  });
}

TEST(ShardedMemoryOnce, WorkersSeeOneCopyOfTheParameters) {
  on_threads(thread_groups(4), [](const Group& group) {
    WideNet net;
    const torch::Tensor frozen =
        net.register_parameter("frozen", torch::zeros({100}), /*requires_grad=*/false);
    Sharded sharded(net, group, ShardStage::parameters, kTenBuckets);
    EXPECT_EQ(sharded.parameter_bytes(), kWideBytes / 4 + 100 * sizeof(float));
    {
      const torch::NoGradGuard no_grad;
      if (group.rank() == 2) net.weights[3].fill_(7);
      frozen.fill_(group.rank());
    }
    group.barrier();
    EXPECT_TRUE(torch::equal(net.weights[3], torch::full({4096}, 7.0f)));
    EXPECT_TRUE(torch::equal(frozen, torch::full({100}, static_cast<float>(group.rank()))));
  });
}

// Who comes first to load weights waits for those who still compute with the old ones.
TEST(ShardedMemoryOnce, NobodyWritesTheCopyUnderWholeWhileOthersReadIt) {
  on_threads(thread_groups(2), [](const Group& group) {
    WideNet net;
    Sharded sharded(net, group, ShardStage::parameters, kTenBuckets);
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_TRUE(torch::equal(net.weights[9], torch::full({4096}, 0.1 * 9))) << "rank " << group.rank();
    {
      const auto whole = sharded.whole();
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& weight : net.weights) weight.fill_(7);
    }
    EXPECT_TRUE(torch::equal(net.weights[9], torch::full({4096}, 7.0f))) << "rank " << group.rank();
  });
}

// Buckets of 3, 4 and 5 pages: what two machines' workers have updated arrives in the memory of two of them.
TEST(ShardedMemoryOnce, UpdatesOfOtherMachinesArriveInTwoBuckets) {
  constexpr std::size_t kPageBytes = 4096;
  on_threads(node_groups({0, 1, 1}, net::Security::plaintext), [](const Group& group) {
    auto net = std::make_shared<torch::nn::Module>();
    for (const int pages : {5, 4, 3})
      net->register_parameter("pages" + std::to_string(pages), torch::ones({pages * 1024}));
    Sharded sharded(net, group, ShardStage::parameters, {.bucket_cap_mb = 1e-3, .first_bucket_mb = 1e-3});
    SGD optimizer(sharded);
    for (int step = 0; step < 3; ++step) {
      torch::Tensor sum = torch::zeros({});
      for (const torch::Tensor& weight : net->parameters()) sum = sum + weight.sum();
      sum.backward();
      optimizer.step();
    }
    const std::size_t own = 12 * kPageBytes / (group.rank() == 0 ? 1 : 2);
    EXPECT_GT(sharded.parameter_bytes(), own);
    EXPECT_LE(sharded.parameter_bytes(), own + 2 * 5 * kPageBytes + kPageBytes / 4)
        << "rank " << group.rank();
  });
}

// Whichever rank's model goes first: the first rank's memory it is.
TEST(ShardedMemoryOnce, TheCopyStaysAsLongAsAModelDoes) {
  on_threads(thread_groups(3), [](const Group& group) {
    auto net = std::make_shared<WideNet>();
    { const Sharded sharded(net, group, ShardStage::parameters, kTenBuckets); }
    if (group.rank() == 0) net.reset();
    group.barrier();
    if (group.rank() == 0) return;
    EXPECT_TRUE(torch::equal(net->weights[9], torch::full({4096}, 0.1 * 9)));
  });
}

// A module that parameters in shards leave behind is on the common copy. Whoever updates whole parameters
// gives every worker its own first.
TEST(ShardedMemoryOnce, AModelOfOneCopyTrainsUnderDataParallelBehindIt) {
  const auto train = [](const Group& group, bool wrapped_before) {
    OddNet net;
    if (wrapped_before) {
      const Sharded sharded(net, group, ShardStage::parameters, small());
    }
    DataParallel ddp(net, group, small());
    const auto optimizer = momentum(ddp);
    for (int step = 0; step < 3; ++step) {
      lanes_of_a_step(group, 4, step, net, ddp);
      optimizer->step();
      group.barrier();
    }
    return copies(net);
  };
  const Tensors expected =
      alike_on(thread_groups(4), [&](const Group& group) { return train(group, false); });
  EXPECT_TRUE(
      equal(alike_on(thread_groups(4), [&](const Group& group) { return train(group, true); }), expected));
}

// Tied weights are there once.
TEST_P(ShardedMemory, TellsTheMemoryOfTiedWeightsOnce) {
  on_threads(thread_groups(2), [this](const Group& group) {
    OddNet net;
    Sharded sharded(net, group, GetParam(), small());
    std::size_t bytes = 0;
    for (const NamedTensor& parameter : sharded.parameters()) bytes += parameter.tensor.nbytes();
    if (GetParam() == ShardStage::parameters)
      EXPECT_LT(sharded.parameter_bytes(), bytes * 3 / 4);
    else
      EXPECT_EQ(sharded.parameter_bytes(), bytes);
  });
}

// Memory that is short leaves the model where it was: another strategy may be tried.
TEST_P(ShardedMemory, AModelThatFindsNoRoomIsNotMovedHalfway) {
  ::setenv("LOCKSTEP_ARENA", "64M", 1);
  const std::vector<Group> groups = thread_groups(2);
  ::unsetenv("LOCKSTEP_ARENA");
  on_threads(groups, [this](const Group& group) {
    torch::nn::Module net;
    std::vector<const void*> places;
    const int count =
        GetParam() == ShardStage::optimizer ? 10 : 20;  // whose gradients have room, or none yet
    for (int k = 0; k < count; ++k)
      places.push_back(
          net.register_parameter("weight" + std::to_string(k), torch::ones({1 << 20})).data_ptr());
    expect_error<SystemError>(
        [&] { Sharded(net, group, GetParam(), {.bucket_cap_mb = 4, .first_bucket_mb = 4}); },
        {"cannot allocate", "LOCKSTEP_ARENA"});
    for (std::size_t k = 0; k < places.size(); ++k) EXPECT_EQ(net.parameters()[k].data_ptr(), places[k]);
  });
}

TEST(Strategies, TellAllMemoryOfGradients) {
  const Group alone = thread_groups(1)[0];
  OddNet net;
  DataParallel ddp(net, alone, {.bucket_cap_mb = 25, .first_bucket_mb = 25});
  const std::size_t one_lane = ddp.gradient_bytes();
  for (int step = 0; step < 2; ++step) {  // in three sets; the buckets are laid out anew after the first
    lanes_of_a_step(alone, 8, step, net, ddp);
    ddp.end_step();
  }
  std::size_t gradients = 0;
  for (const NamedTensor& parameter : ddp.parameters()) gradients += parameter.tensor.nbytes();
  EXPECT_GE(ddp.gradient_bytes(), one_lane + 2 * gradients);
}

}  // namespace
}  // namespace lockstep::testing
