// Models whose units are cut as soon as they are made: the bits of those that are built whole, and never the
// memory.
#include "lockstep/parallel/construction.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <atomic>
#include <optional>
#include <utility>

#include "comm/expect_error.h"
#include "comm/wire_ranks.h"
#include "lockstep/parallel/data_parallel.h"
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
using testing::plain_options;
using testing::train_ddp;
using testing::train_units;
using testing::UnitNet;
using testing::UnitRun;

UnitRun in_parts(StrategyOptions options) { return {.options = std::move(options), .in_parts = true}; }

StrategyOptions mapped() {
  StrategyOptions options = plain_options();
  options.parameters = ParameterAccess::mapped;
  return options;
}

TEST(Construction, HasTheBitsOfAModelBuiltWhole) {
  const auto expected = train_ddp();
  for (const int workers : {1, 2, 3, 4}) {
    EXPECT_TRUE(equal(train_units(in_parts(gathered_options()), workers), expected)) << workers;
    EXPECT_TRUE(equal(train_units(in_parts(mapped()), workers), expected)) << workers << ", mapped";
  }
  StrategyOptions hybrid = gathered_options();
  hybrid.shard_workers = 2;
  EXPECT_TRUE(equal(train_units(in_parts(hybrid), 4), expected)) << "in sets of two";
}

TEST(Construction, OverWiresToo) {
  const auto expected = train_ddp();
  EXPECT_TRUE(
      equal(alike_on(testing::tcp_groups(3, net::Security::plaintext),
                     [](const Group& group) { return train_units(in_parts(gathered_options()), group); }),
            expected));
}

TEST(Construction, IsBroughtTogetherForStrategiesThatHoldParametersWhole) {
  const auto expected = train_ddp();
  for (const char* const name : {"ddp", "zero1", "zero2"}) {
    UnitRun run = in_parts(plain_options());
    run.strategy = name;
    EXPECT_TRUE(equal(train_units(run, 2), expected)) << name;
  }
}

// Eight blocks of 64 KiB with values of `rank`, which a constructor scales when all of them are there.
struct RowOfBlocks : torch::nn::Module {
  static constexpr std::size_t kBlocks = 8;
  static constexpr std::size_t kBlockBytes = 64 << 10;
  struct Block : torch::nn::Module {
    torch::Tensor weight;
    explicit Block(float value) {
      weight = register_parameter("weight", torch::full({kBlockBytes / sizeof(float)}, value));
    }
    torch::Tensor forward(const torch::Tensor& x) { return x * weight; }
  };
  std::vector<UnitOf<Block>> blocks;
  explicit RowOfBlocks(int rank = 0) {
    for (std::size_t i = 0; i < kBlocks; ++i)
      blocks.push_back(shard(register_module(
          std::to_string(i),
          std::make_shared<Block>(1 + 0.01f * static_cast<float>(i) + static_cast<float>(rank)))));
    const torch::NoGradGuard no_grad;
    for (const auto& block : blocks)
      initialise(block, [&] { block->weight.mul_(static_cast<float>(2 + rank)); });
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& block : blocks) x = block.forward(x);
    return x;
  }
};

const StrategyOptions kABucketABlock{
    .bucket_cap_mb = 1.0 / 16, .first_bucket_mb = 1.0 / 16, .parameters = ParameterAccess::gathered};

// As DataParallel does, which makes everybody's rank 0's.
TEST(Construction, TakesWhatRankZeroHasMade) {
  RowOfBlocks expected(0);
  for (const ParameterAccess access : {ParameterAccess::gathered, ParameterAccess::mapped})
    on_threads(thread_groups(3), [&](const Group& group) {
      const ShardedConstruction scope(group);
      RowOfBlocks net(group.rank());
      StrategyOptions options = kABucketABlock;
      options.parameters = access;
      Sharded sharded(net, group, ShardStage::parameters, options);
      const auto whole = sharded.whole();
      EXPECT_TRUE(equal(copies(net), copies(expected)));
    });
}

// Counts what libtorch takes in this process, beside what the scope says.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* real) : real_(real) {}
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
  c10::DataPtr allocate(std::size_t bytes) override { return counted(bytes); }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
#else
  c10::DataPtr allocate(std::size_t bytes) const override { return counted(bytes); }
#endif
  std::size_t since() { return peak_ = now_.load(); }  // what there is now; from here on its peak
  std::size_t peak() const { return peak_; }

 private:
  struct Piece {
    c10::DataPtr memory;
    std::size_t bytes;
    const CountingAllocator* owner;
  };
  c10::DataPtr counted(std::size_t bytes) const {
    auto* const piece = new Piece{real_->allocate(bytes), bytes, this};
    const std::size_t now = now_ += bytes;
    for (std::size_t most = peak_; most < now && !peak_.compare_exchange_weak(most, now);) continue;
    return {piece->memory.get(), piece,
            [](void* context) {
              auto* const gone = static_cast<Piece*>(context);
              gone->owner->now_ -= gone->bytes;
              delete gone;
            },
            c10::Device(c10::kCPU)};
  }
  c10::Allocator* real_;
  mutable std::atomic<std::size_t> now_ = 0, peak_ = 0;
};

struct Peaks {
  std::size_t said = 0;   // of a worker, at most
  std::size_t torch = 0;  // of all together
};

Peaks peaks_of(int workers, const StrategyOptions& options) {
  // Never ended: libtorch may keep a tensor for longer than this.
  static auto& counting = *new CountingAllocator(c10::GetCPUAllocator());
  c10::Allocator* const before = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&counting, /*priority=*/100);
  const std::size_t since = counting.since();
  std::atomic<std::size_t> most = 0;
  on_threads(thread_groups(workers), [&](const Group& group) {
    ShardedConstruction scope(group);
    RowOfBlocks net;
    const Sharded sharded(net, group, ShardStage::parameters, options);
    for (std::size_t known = most; known < scope.peak_bytes();)
      if (most.compare_exchange_weak(known, scope.peak_bytes())) break;
  });
  c10::SetCPUAllocator(before, /*priority=*/100);
  return {most, counting.peak() - since};
}

TEST(Construction, NeverTakesMoreThanTheShardAndTwoUnits) {
  constexpr std::size_t kModel = RowOfBlocks::kBlocks * RowOfBlocks::kBlockBytes;
  for (const int workers : {2, 4})
    for (const ParameterAccess access : {ParameterAccess::gathered, ParameterAccess::mapped}) {
      StrategyOptions options = kABucketABlock;
      options.parameters = access;
      const Peaks peaks = peaks_of(workers, options);
      const auto w = static_cast<std::size_t>(workers);
      EXPECT_LE(peaks.said, kModel / w + 2 * RowOfBlocks::kBlockBytes) << workers;
      EXPECT_GE(peaks.said, kModel / w + RowOfBlocks::kBlockBytes) << workers;
      // The workers' parts of the gradients, which together are as much as the model, and two blocks each;
      // built whole it would be a model for every worker.
      EXPECT_LE(peaks.torch, kModel + w * 2 * RowOfBlocks::kBlockBytes) << workers;
    }
}

TEST(Construction, RefusesAForwardBeforeAStrategyHasTheModel) {
  on_threads(thread_groups(2), [](const Group& group) {
    const ShardedConstruction scope(group);
    RowOfBlocks net;
    EXPECT_FALSE(has_memory(net.blocks[0]->weight));
    expect_error<UsageError>([&] { net.forward(torch::ones({1})); }, {"are in parts since it was made"});
    recompute(net.blocks[0]);
    expect_error<UsageError>([&] { net.forward(torch::ones({1})); },
                             {"behind the strategy that takes the model"});
  });
}

TEST(Construction, RefusesWhatWouldKeepTheMemory) {
  on_threads(thread_groups(2), [](const Group& group) {
    const ShardedConstruction scope(group);
    expect_error<UsageError>([&] { const ShardedConstruction inner(group); }, {"one at a time"});
    const auto linear = std::make_shared<torch::nn::LinearImpl>(4, 4);
    const torch::Tensor alias = linear->weight.detach();
    expect_error<UsageError>([&] { shard(linear); }, {"has its memory in common with another tensor"});
  });
}

// What shard() gives is not kept, and the parts go with it.
struct ForgetsAUnit : torch::nn::Module {
  UnitOf<torch::nn::LinearImpl> kept;
  explicit ForgetsAUnit(bool keeps_one) {
    if (keeps_one) kept = shard(register_module("kept", torch::nn::Linear(4, 4)));
    shard(register_module("forgotten", torch::nn::Linear(4, 4)));
  }
};

TEST(Construction, NamesAParameterWhoseUnitIsGone) {
  on_threads(thread_groups(2), [](const Group& group) {
    const ShardedConstruction scope(group);
    for (const bool keeps_one : {false, true}) {
      ForgetsAUnit net(keeps_one);
      const std::vector<std::string> words = {"'forgotten.weight' has no memory",
                                              "what shard() gives is kept"};
      expect_error<UsageError>([&] { const DataParallel ddp(net, group); }, words);
      for (const ParameterAccess access : {ParameterAccess::gathered, ParameterAccess::mapped}) {
        StrategyOptions options = kABucketABlock;
        options.parameters = access;
        expect_error<UsageError>([&] { const Sharded sharded(net, group, ShardStage::parameters, options); },
                                 words);
      }
    }
  });
}

// As what is made so is. A GPU's memory would be the same.
TEST(Construction, LeavesWholeWhatCanNotBeCutAnyMore) {
  on_threads(thread_groups(2), [](const Group& group) {
    const ShardedConstruction scope(group);
    const auto unit = shard(std::make_shared<torch::nn::LinearImpl>(4, 4));
    const torch::Tensor expected = torch::arange(32, torch::kFloat32).view({4, 8}).slice(1, 2, 6);
    initialise(unit, [&] { unit->weight.set_data(expected); });
    ASSERT_TRUE(has_memory(unit->weight));
    EXPECT_TRUE(unit->weight.detach().equal(expected));
    initialise(unit, [&] { EXPECT_TRUE(unit->weight.detach().equal(expected)); });
  });
}

// The others may have other values, which nobody has compared.
TEST(Construction, RefusesAStrategyOfMoreWorkers) {
  RowOfBlocks expected(0);
  on_threads(thread_groups(4), [&](const Group& group) {
    const Group half = group.split(group.rank() / 2);
    const ShardedConstruction scope(half);
    RowOfBlocks net(group.rank());
    expect_error<UsageError>(
        [&] { const Sharded sharded(net, group, ShardStage::parameters, kABucketABlock); },
        {"cut among 2 workers", "the strategy has 4"});
    const DataParallel ddp(net, group);  // brings them together, and sends rank 0's
    EXPECT_TRUE(equal(copies(net), copies(expected)));
  });
}

TEST(Construction, NamesAParameterThatAnotherOneHasCut) {
  on_threads(thread_groups(2), [](const Group& group) {
    std::optional<ShardedConstruction> scope(std::in_place, group);
    const auto first = shard(std::make_shared<torch::nn::LinearImpl>(4, 4));
    scope.reset();
    scope.emplace(group);
    expect_error<UsageError>([&] { shard(std::make_shared<testing::TiedHead>(first->weight)); },
                             {"has no memory", "around all units that share it"});
  });
}

TEST(Construction, NamesAUnitThatIsOfAnotherFormElsewhere) {
  for (const int other : {6, 8})
    on_threads(thread_groups(2), [&](const Group& group) {
      const ShardedConstruction scope(group);
      shard(std::make_shared<torch::nn::LinearImpl>(4, 4));
      expect_error<MismatchError>(
          [&] { shard(std::make_shared<torch::nn::LinearImpl>(4, group.rank() == 0 ? 4 : other)); },
          {"the models differ: rank 0 has unit 1 (torch::nn::LinearImpl), parameter 0 Float [4, 4]"});
    });
}

TEST(Construction, EndsWhereAWorkerIsGone) {
  testing::with_own_groups(thread_groups(2), [](Group group) {
    const int rank = group.rank();
    const ShardedConstruction scope(std::exchange(group, {}));
    shard(std::make_shared<torch::nn::LinearImpl>(4, 4));
    if (rank == 1) return;  // its scope has the last of its group
    expect_error<PeerError>(
        [&] {
          for (;;) shard(std::make_shared<torch::nn::LinearImpl>(4, 4));
        },
        {"rank 1"});
  });
}

}  // namespace
}  // namespace lockstep
