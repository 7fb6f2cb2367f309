// A worker's parts of parameters on disk, against DataParallel: the same bits whatever the optimizer, and a
// disk that fails.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <stdexcept>

#include "comm/expect_error.h"
#include "lockstep/base/fd.h"
#include "lockstep/compress/compress.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/optim/onebit_adam.h"
#include "lockstep/parallel/sharded.h"
#include "parallel/shard_store.h"
#include "parallel/unit_models.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::equal;
using testing::expect_error;
using testing::on_threads;
using testing::train_ddp;
using testing::train_units;
using testing::UnitNet;
using testing::UnitRun;

class ShardOffload : public ::testing::Test {
 protected:
  ShardOffload() {
    std::string name = (fs::temp_directory_path() / "lockstep-shard-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~ShardOffload() override { fs::remove_all(folder_); }

  UnitRun on_disk(UnitRun run = {}) const {
    run.options.offload_params = {.folder = folder_};
    return run;
  }
  // The optimizer's state too.
  testing::MakeOptimizer adamw_on_disk() const {
    return [folder = folder_](GradientSource& source) -> std::unique_ptr<Optimizer> {
      return std::make_unique<AdamW>(source, AdamWOptions{.lr = 0.02, .offload = {.folder = folder}});
    };
  }

  fs::path folder_;
};

TEST_F(ShardOffload, HasTheBitsOfDataParallelOnAnyNumberOfWorkers) {
  const auto expected = train_ddp();
  for (const int workers : {1, 2, 3}) {
    EXPECT_TRUE(equal(train_units(on_disk(), workers), expected)) << workers << " workers";
    EXPECT_TRUE(equal(train_units(on_disk({.make = adamw_on_disk()}), workers), expected))
        << workers << " workers, state too";
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(ShardOffload, ServesWorkersWithMoreLanesAndRecomputes) {
  EXPECT_TRUE(equal(train_units(on_disk({.lanes = 9}), 5), train_ddp({.lanes = 9})));
  EXPECT_TRUE(
      equal(train_units(on_disk({.recompute = true, .in_parts = true}), 2), train_ddp({.recompute = true})));
}

TEST_F(ShardOffload, HasTheSameBitsUnderEveryOptimizerAndWithClipping) {
  const auto momentum = [](GradientSource& source) -> std::unique_ptr<Optimizer> {
    return std::make_unique<SGD>(source, SGDOptions{.lr = 0.05, .momentum = 0.9});
  };
  for (const fs::path& state : {fs::path(), folder_}) {
    const auto lars = [&](GradientSource& source) -> std::unique_ptr<Optimizer> {
      return std::make_unique<LARS>(source,
                                    LARSOptions{.lr = 0.5, .momentum = 0.9, .offload = {.folder = state}});
    };
    const auto lamb = [&](GradientSource& source) -> std::unique_ptr<Optimizer> {
      return std::make_unique<LAMB>(source, LAMBOptions{.lr = 0.02, .offload = {.folder = state}});
    };
    for (const testing::MakeOptimizer& make : std::vector<testing::MakeOptimizer>{momentum, lars, lamb})
      EXPECT_TRUE(equal(train_units(on_disk({.make = make, .clip = 0.3}), 2),
                        train_ddp({.make = make, .clip = 0.3})));
  }
}

// Each set has all parts; those of other sets' workers come over behind the update.
TEST_F(ShardOffload, HasTheSameBitsInSets) {
  UnitRun run = on_disk();
  run.options.shard_workers = 2;
  EXPECT_TRUE(equal(train_units(run, 4), train_ddp()));
}

TEST_F(ShardOffload, HoldsLittleInMemoryAndCountsWhatIsOnDisk) {
  UnitRun run = on_disk({.steps = 2});
  run.look = [](const Strategy& strategy, const Group&) {
    const UnitNet whole;
    std::size_t apart = whole.alone.nbytes();
    for (const auto& p : whole.frozen->parameters()) apart += p.nbytes();
    // Of these small buckets each takes a page: two that are read, and four around an update.
    EXPECT_LE(strategy.parameter_bytes(), apart + 6 * 4096);
    const auto figures = strategy.offload(4);
    ASSERT_TRUE(figures.has_value());
    EXPECT_GE(figures->bytes, (whole.blocks[0]->parameters().size()) * 4096);
    EXPECT_GT(figures->predicted_ms, 0);
    EXPECT_TRUE(figures->measured_ms.has_value());
  };
  train_units(run, 2);
}

// Of a step of four lanes: before each forward and each backward, and for the update; norms take another
// read.
TEST_F(ShardOffload, PredictsWhatOptimizersReadForTheirNorms) {
  const auto lamb = [](GradientSource& source) -> std::unique_ptr<Optimizer> {
    return std::make_unique<LAMB>(source, LAMBOptions{.lr = 0.02});
  };
  for (const int norms : {0, 1}) {
    UnitRun run = on_disk({.steps = 1});
    if (norms == 1) run.make = lamb;
    run.look = [&](const Strategy& strategy, const Group&) {
      const OffloadFigures figures = strategy.offload(4).value();
      const auto bytes = static_cast<double>(figures.bytes);
      EXPECT_DOUBLE_EQ(figures.predicted_ms,
                       1e3 * ((2 * 4) * bytes / figures.read_rate + bytes / figures.both_rate +
                              norms * bytes / figures.read_rate))
          << norms;
    };
    train_units(run, 2);
  }
}

// An optimizer may be made while units are asked for ahead, which nobody waits for outside of steps.
TEST_F(ShardOffload, WhoHoldsSlicesLeavesTheMemoryOfAGatherAlone) {
  constexpr std::size_t kPart = 8192;
  ShardStore store({.folder = folder_}, std::vector<ShardStore::Form>(4, {.part_bytes = kPart}), 4);
  const auto is = [](const void* bytes, int value) {
    const auto* const all = static_cast<const std::byte*>(bytes);
    return std::all_of(all, all + kPart, [&](std::byte each) { return each == std::byte(value); });
  };
  std::vector<torch::Tensor> parameters;
  for (int b = 0; b < 4; ++b) {
    store.write_part(b, 0, std::vector(kPart, std::byte(b + 1)));
    parameters.push_back(torch::zeros({kPart}, torch::kUInt8));
    store.add_slice(static_cast<std::size_t>(b), parameters.back(), b, 0);
  }
  const auto hold_all = [&] {
    for (std::size_t slice = 0; slice < parameters.size(); ++slice) {
      store.hold(std::span(&slice, 1), SliceStore::Use::read);
      EXPECT_TRUE(is(parameters[slice].data_ptr(), static_cast<int>(slice) + 1)) << slice;
    }
    store.let_go();
  };
  store.begin_passes();
  const std::byte* const first = store.fetch(0);
  const std::byte* const second = store.fetch(1);
  hold_all();
  EXPECT_TRUE(is(first, 1));
  EXPECT_TRUE(is(second, 2));
  // Between passes it takes that memory: no more than was there.
  store.rest();
  const std::size_t before = store.peak_bytes();
  hold_all();
  EXPECT_EQ(store.peak_bytes(), before);
  EXPECT_LE(before, 6 * kPart);
}

TEST_F(ShardOffload, WritingUnderWholeReachesTheDisk) {
  on_threads(thread_groups(2), [&](const Group& group) {
    UnitNet net;
    Sharded sharded(net, group, ShardStage::parameters, on_disk().options);
    {
      const auto whole = sharded.whole();
      const torch::NoGradGuard no_grad;
      net.blocks[0]->up->weight.fill_(0.25);
    }
    const auto whole = sharded.whole();
    EXPECT_TRUE(net.blocks[0]->up->weight.eq(0.25).all().item<bool>());
  });
}

// Parameters go from memory all the same: they would be what others have updated long since.
TEST_F(ShardOffload, ADiskThatIsFullBehindWholeIsTold) {
  UnitNet net;
  const Group group = thread_groups(1)[0];
  Sharded sharded(net, group, ShardStage::parameters, on_disk().options);
  const auto fill_disk = [&] {
    const UniqueFd full(::open("/dev/full", O_RDWR | O_CLOEXEC));
    int files = 0;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string target = fs::read_symlink(entry.path(), gone).string();
      if (target.starts_with(folder_.string() + "/") &&
          ::dup2(full.get(), std::stoi(entry.path().filename())) >= 0)
        ++files;
    }
    return files;
  };
  expect_error<OffloadError>(
      [&] {
        const auto whole = sharded.whole();
        ASSERT_EQ(fill_disk(), 1);
      },
      {"cannot write the scratch file"});
  EXPECT_FALSE(has_memory(net.blocks[0]->up->weight));
  const auto fail = [&] {
    const auto whole = sharded.whole();
    throw std::runtime_error("while parameters are whole");
  };
  EXPECT_THROW(fail(), std::runtime_error);  // which comes first
  EXPECT_FALSE(has_memory(net.blocks[0]->up->weight));
}

TEST_F(ShardOffload, AFolderThatOneRankCannotUseIsToldToAll) {
  on_threads(thread_groups(2), [&](const Group& group) {
    UnitRun run = on_disk();
    if (group.rank() == 1) run.options.offload_params.folder = folder_ / "missing";
    expect_error<OffloadError>([&] { train_units(run, group); },
                               {"cannot make a scratch file in", "missing: No such file"});
  });
}

TEST_F(ShardOffload, AllRanksOrNone) {
  for (const ParameterAccess access : {ParameterAccess::chosen, ParameterAccess::gathered})
    on_threads(thread_groups(3, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
      UnitRun run = on_disk();
      run.options.parameters = access;
      if (group.rank() == 1) run.options.offload_params = {};
      expect_error<UsageError>([&] { train_units(run, group); },
                               {"rank 0 has `offload_params`", "not rank 1", "accepted: on all, or none"});
    });
}

// Parameters in 16 bits, with masters in memory and on disk, by gradients in 16 bits and in f32; a step that
// is not taken, and parameters that somebody else wrote.
TEST_F(ShardOffload, HasTheBitsOfParametersInMemoryIn16Bits) {
  for (const ReducePrecision precision : {ReducePrecision::same, ReducePrecision::f32})
    for (const fs::path& state : {fs::path(), folder_}) {
      std::vector<torch::Tensor> found[2];
      for (const bool there : {false, true})
        on_threads(thread_groups(3), [&](const Group& group) {
          UnitNet net;
          net.to(torch::kBFloat16);
          StrategyOptions options = there ? on_disk().options : testing::gathered_options();
          options.reduce_precision = precision;
          Sharded sharded(net, group, ShardStage::parameters, options);
          AdamW adamw(sharded,
                      {.lr = 0.02, .master_weights = MasterWeights::f32, .offload = {.folder = state}});
          for (int step = 0; step < 4; ++step) {
            if (step == 2) {
              const auto whole = sharded.whole();
              const torch::NoGradGuard no_grad;
              net.blocks[0]->up->weight.fill_(0.25);
            }
            testing::unit_lanes(group, 5, step, net, sharded);
            step == 1 ? adamw.zero_grad() : adamw.step();
          }
          const auto whole = sharded.whole();
          if (group.rank() == 0) found[there ? 1 : 0] = testing::copies(net);
        });
      EXPECT_FALSE(found[0].empty());
      EXPECT_TRUE(equal(found[0], found[1])) << (state.empty() ? "masters in memory" : "masters on disk");
    }
}

struct TwoUnits : torch::nn::Module {
  UnitOf<torch::nn::LinearImpl> first, last;
  TwoUnits() {
    first = shard(register_module("first", torch::nn::Linear(8, 8)));
    last = shard(register_module("last", torch::nn::Linear(8, 8)));
    to(torch::kBFloat16);
    fill(0.5);
  }
  void fill(double value) {
    const torch::NoGradGuard no_grad;
    for (auto& p : parameters()) p.fill_(value);
  }
  torch::Tensor loss() {
    return last.forward(first.forward(torch::ones({4, 8}, torch::kBFloat16))).to(torch::kFloat32).mean();
  }
};

// The optimizer had read the parameters when it refused the step; what is written to them behind that counts.
TEST_F(ShardOffload, AStepThatIsRefusedLeavesNothingInMemory) {
  std::vector<torch::Tensor> found[2];
  for (const bool there : {false, true})
    on_threads(thread_groups(2), [&](const Group& group) {
      TwoUnits net;
      StrategyOptions options = there ? on_disk().options : testing::gathered_options();
      options.exchange = compressed({.method = "onebit-adam:min=0"});
      Sharded sharded(net, group, ShardStage::parameters, options);
      OneBitAdam optimizer(sharded, {.lr = 0.02, .master_weights = MasterWeights::f32});
      for (const double value : {0.25, 0.75}) {
        {
          const auto whole = sharded.whole();
          net.fill(value);
        }
        net.loss().backward();
        if (value == 0.25) expect_error<UsageError>([&] { optimizer.step(2); }, {"gradient_scale"});
        sharded.reset();
      }
      net.loss().backward();
      optimizer.step();
      const auto whole = sharded.whole();
      if (group.rank() == 0) found[there ? 1 : 0] = testing::copies(net);
    });
  EXPECT_FALSE(found[0].empty());
  EXPECT_TRUE(equal(found[0], found[1]));
}

TEST_F(ShardOffload, OtherStagesRefuseIt) {
  on_threads(thread_groups(2), [&](const Group& group) {
    UnitNet net;
    expect_error<UsageError>(
        [&] { Sharded(net, group, ShardStage::gradients, {.offload_params = {.folder = folder_}}); },
        {"offload_params", "zero3"});
  });
}

}  // namespace
}  // namespace lockstep
