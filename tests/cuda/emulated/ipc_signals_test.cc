// How ranks of the engine ipc order their streams: by counters and by events, in one queue, over more rounds
// than there are counters, and when a rank dies.
#include <array>
#include <thread>

#include "comm/cuda/ipc_counters.h"
#include "comm/cuda/memory_ops.h"
#include "comm/cuda/runtime.h"
#include "comm/engine/ipc_engine.h"
#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "comm/world/group_impl.h"
#include "comm/world/local_world.h"
#include "cuda/device_grid.h"
#include "cuda/emulated/card.h"
#include "cuda/gpu.h"
#include "lockstep/base/clock.h"

namespace lockstep {
namespace {

using cuda::CudaRuntime;
using cuda::IpcCounters;
using testing::kGpu;
using testing::on_threads;

constexpr std::chrono::seconds kTimeout{60};
constexpr InitOptions kOnCard{.timeout = kTimeout, .device = Device::Kind::cuda};

// The card as it is at first when a test is over, whatever became of it.
class OnCard : public ::testing::Test {
 protected:
  void TearDown() override {
    emulated::have_memory_ops(true);
    emulated::register_host_memory(true);
    emulated::share_one_queue(false);
  }
};

bool passes_soon(const DeviceEvent& event) {
  for (const Deadline deadline = Deadline::after(std::chrono::seconds(5)); !deadline.passed();) {
    if (CudaRuntime::get().passed(event)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void run_small_grid(int ranks) {
  on_threads(thread_groups(ranks, kOnCard), [](const Group& g) {
    const auto result = testing::run_device_grid(g, {.counts = {1027}, .dtypes = {DType::f32}});
    EXPECT_EQ(result.problem, "");
    EXPECT_GT(result.checks, 20U);
  });
}

class IpcSignalsOnCard : public OnCard {};

TEST_F(IpcSignalsOnCard, AreCountersWhereTheGpuHasMemoryOperations) {
  const unsigned long before = emulated::memory_ops();
  run_small_grid(3);
  EXPECT_GT(emulated::memory_ops(), before + 100);
}

TEST_F(IpcSignalsOnCard, AreEventsWhereTheGpuHasNoMemoryOperations) {
  emulated::have_memory_ops(false);
  const unsigned long before = emulated::memory_ops();
  run_small_grid(3);
  EXPECT_EQ(emulated::memory_ops(), before);
}

TEST_F(IpcSignalsOnCard, AreEventsWhereTheCountersCannotBeRegistered) {
  emulated::register_host_memory(false);
  const unsigned long before = emulated::memory_ops();
  run_small_grid(2);
  EXPECT_EQ(emulated::memory_ops(), before);
}

// Where the host sees that buffers are ready nobody waits for that: of the four operations that a call and
// rank has, the two behind its kernel are left. The card may be slow to see that nothing is before it, but
// not always.
TEST_F(IpcSignalsOnCard, AreNotNeededForBuffersThatAreReadyAlready) {
  std::vector<Group> groups = thread_groups(2, kOnCard);
  std::atomic<unsigned long> before = 0;
  constexpr std::size_t kCalls = 40;
  on_threads(groups, [&](const Group& g) {
    std::vector<CommMemory> memory;
    for (int b = 0; b < 4; ++b) memory.push_back(g.allocate(64, kGpu));
    const auto call = [&](std::size_t b) {
      testing::sync();
      g.all_reduce_async(Buffer{memory[b % 4].data(), 16, DType::i32, kGpu}).wait_on_host();
    };
    for (std::size_t b = 0; b < 4; ++b) call(b);
    (void)g.all_reduce(1);
    if (g.rank() == 0) before = emulated::memory_ops();
    (void)g.all_reduce(1);
    for (std::size_t b = 0; b < kCalls; ++b) call(b);
  });
  EXPECT_GE(emulated::memory_ops() - before, 2 * 2 * kCalls);
  EXPECT_LT(emulated::memory_ops() - before, 2 * 4 * kCalls);
}

// Sums wrap, so that the number of calls tells the result.
void expect_sums(int ranks, std::size_t buffers, unsigned calls) {
  on_threads(thread_groups(ranks, kOnCard), [&](const Group& g) {
    constexpr std::size_t kCount = 64;
    std::vector<CommMemory> memory;
    for (std::size_t b = 0; b < buffers; ++b) {
      memory.push_back(g.allocate(kCount * 4, kGpu));
      const std::vector<std::uint32_t> first(kCount, static_cast<std::uint32_t>(b) + 1);
      testing::upload(memory[b].data(), first.data(), kCount * 4);
    }
    Work last;
    for (unsigned i = 0; i < calls; ++i)
      for (const CommMemory& one : memory)
        last = g.all_reduce_async(Buffer{one.data(), kCount, DType::i32, kGpu});
    last.wait();
    for (std::size_t b = 0; b < buffers; ++b) {
      std::uint32_t sum = static_cast<std::uint32_t>(b) + 1;
      for (unsigned i = 0; i < calls; ++i) sum *= static_cast<std::uint32_t>(g.size());
      const std::vector<std::uint32_t> want(kCount, sum);
      const testing::Bytes got = testing::download(memory[b].data(), kCount * 4);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0) << "buffer " << b;
    }
  });
}

TEST_F(IpcSignalsOnCard, GoRoundMoreOftenThanThereAreCounters) {
  static_assert(IpcCounters::kRounds < 3 * 250);
  expect_sums(3, 1, 3 * 250);  // in a row
  expect_sums(3, 5, 150);      // in flight
}

// Rank 1 is late, so the second call on x, which is on the caller's stream as a whole, stays there on both.
// The many behind it, each on memory of its own, are ready at once: as many rounds later the counters are the
// same.
TEST_F(IpcSignalsOnCard, OfARoundAreNotWrittenBeforeThoseOfTheRoundInTheirPlace) {
  std::atomic<std::uint64_t> late = 0;
  constexpr std::size_t kMany = IpcCounters::kRounds + 50;
  std::vector<Group> groups =
      thread_groups(2, {.timeout = std::chrono::seconds(10), .device = Device::Kind::cuda});
  const std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    late = 1;
  });
  on_threads(groups, [&](const Group& g) {
    const CommMemory x = g.allocate(16, kGpu);
    const CommMemory many = g.allocate(kMany * 16, kGpu);
    const auto call = [&](std::byte* at) { return g.all_reduce_async(Buffer{at, 4, DType::i32, kGpu}); };
    if (g.rank() == 1)
      cuda::wait_for_numbers(CudaRuntime::get().current_stream(0),
                             std::vector<cuda::NumberWait>{{reinterpret_cast<std::uintptr_t>(&late), 1}});
    (void)call(x.as<std::byte>());
    (void)call(x.as<std::byte>());
    Work last;
    for (std::size_t i = 0; i < kMany; ++i) last = call(many.as<std::byte>() + 16 * i);
    last.wait_on_host();
  });
}

// Each rank calls on its two groups in an order of its own. In one queue, what waits for what is not there
// yet would keep what the peer of the other group waits for from getting there.
TEST_F(IpcSignalsOnCard, NeverWaitForWhatIsNotInTheQueueYet) {
  emulated::share_one_queue(true);
  on_threads(thread_groups(4, kOnCard), [](const Group& world) {
    const Group pair = world.split(world.rank() / 2);
    const Group other = world.split(world.rank() % 2);
    constexpr std::size_t kCount = 1000;
    const CommMemory a = world.allocate(kCount * 4, kGpu);
    const CommMemory b = world.allocate(kCount * 4, kGpu);
    const CommMemory c = world.allocate(kCount * 4, kGpu);
    for (int i = 0; i < 50; ++i) {
      std::vector<Work> works;
      const auto on_pair = [&] {
        works.push_back(pair.all_reduce_async(Buffer{a.data(), kCount, DType::i32, kGpu}));
      };
      const auto on_other = [&] {
        works.push_back(other.all_reduce_async(Buffer{b.data(), kCount, DType::i32, kGpu}));
      };
      if ((world.rank() + i) % 2 == 0) on_pair();
      on_other();
      if ((world.rank() + i) % 2 != 0) on_pair();
      works.push_back(world.all_reduce_async(Buffer{c.data(), kCount, DType::i32, kGpu}));
      for (const Work& work : works) work.wait_on_host();
    }
  });
}

// Ranks that lost one to a sudden end, as far as a thread can: its carrier says so from a moment on.
class MortalCarrier final : public Engine {
 public:
  MortalCarrier(std::unique_ptr<Engine> inner, std::shared_ptr<std::atomic<int>> dead)
      : Engine({.name = inner->name(),
                .rank = inner->rank(),
                .nodes = inner->nodes(),
                .naming = inner->naming(),
                .can = inner->capabilities(),
                .selector = inner->selector()}),
        inner_(std::move(inner)),
        dead_(std::move(dead)) {}

  CommMemory allocate(std::size_t bytes, Device device) override { return inner_->allocate(bytes, device); }
  bool reaches(const void* data) const override { return inner_->reaches(data); }
  double expected_seconds(const Call& call) const override { return inner_->expected_seconds(call); }
  PeerView peer(int rank) const override {
    PeerView view = inner_->peer(rank);
    if (*dead_ == rank) view.state = "dead";
    return view;
  }
  void tell_failure(const Error& error) noexcept override { inner_->fail(error); }
  void check(News news) override {
    if (const int dead = *dead_; dead >= 0)
      throw PeerError(dead, "rank " + std::to_string(dead) + " of group world died");
    inner_->check(news);
  }
  Composable* composable() override { return inner_->composable(); }

 protected:
  void execute(const Call& call) override { inner_->run(call); }
  double meet(const Call& call) override { return inner_->open(call); }
  std::unique_ptr<Engine> divide(int colour, int key, const std::string& name, const Call& call) override {
    return inner_->split(colour, key, name, call);
  }

 private:
  std::unique_ptr<Engine> inner_;
  std::shared_ptr<std::atomic<int>> dead_;
};

std::vector<Group> mortals(int ranks, const std::shared_ptr<std::atomic<int>>& dead) {
  std::vector<Group> made;
  for (auto& local : local_threads("world", std::vector<int>(static_cast<std::size_t>(ranks), 0),
                                   Knobs::from_environment()))
    made.push_back(make_group(make_ipc_engine(std::make_shared<MortalCarrier>(std::move(local), dead)),
                              "world", kTimeout));
  return made;
}

class IpcDeath : public OnCard, public ::testing::WithParamInterface<bool> {};  // calls in flight
INSTANTIATE_TEST_SUITE_P(Calls, IpcDeath, ::testing::Bool());

TEST_P(IpcDeath, NobodyWaitsForADeadRankForEver) {
  constexpr int kRanks = 3;
  constexpr int kDead = 1;
  constexpr std::size_t kCount = 1000;
  auto dead = std::make_shared<std::atomic<int>>(-1);
  std::vector<Group> groups = mortals(kRanks, dead);
  std::vector<Group> others = mortals(kRanks, dead);  // the same ranks, of which nobody asks this group
  std::atomic<std::uint64_t> never = 0;               // what the dying rank's stream waits for
  std::atomic<int> met = 0;
  std::atomic<int> looked = 0;
  std::atomic<int> told = 0;
  on_threads(groups, [&](const Group& g) {
    const CommMemory x = g.allocate(kCount * 4, kGpu);
    const CommMemory y = g.allocate(kCount * 4, kGpu);
    const CommMemory z = g.allocate(kCount * 4, kGpu);
    const auto call = [&](const CommMemory& memory) {
      const Buffer buffer{memory.data(), kCount, DType::i32, kGpu};
      if (GetParam())
        g.all_reduce_async(buffer).wait();
      else
        g.all_reduce(buffer);
    };
    call(x);
    testing::sync();
    const DeviceStream stream = CudaRuntime::get().current_stream(0);
    if (g.rank() == kDead)
      cuda::wait_for_numbers(stream,
                             std::vector<cuda::NumberWait>{{reinterpret_cast<std::uintptr_t>(&never), 1}});
    call(x);
    call(y);
    g.barrier(kGpu);
    others[static_cast<std::size_t>(g.rank())].all_reduce(Buffer{z.data(), kCount, DType::i32, kGpu});
    const DeviceEvent end = CudaRuntime::get().record(stream);
    ++met;
    while (met < kRanks) std::this_thread::yield();  // all of it is on the streams
    EXPECT_FALSE(CudaRuntime::get().passed(end));
    ++looked;
    if (g.rank() == kDead) {
      while (looked < kRanks) std::this_thread::yield();
      *dead = kDead;
      while (told < kRanks - 1) std::this_thread::yield();
      never = 1;
      EXPECT_TRUE(passes_soon(end));
      return;
    }
    while (*dead < 0) std::this_thread::yield();
    const auto wait = [&] { g.all_reduce_async(Buffer{x.data(), kCount, DType::i32, kGpu}).wait_on_host(); };
    testing::expect_error<PeerError>(wait, {"rank 1"});
    EXPECT_TRUE(passes_soon(end));
    // What passed since then is no result.
    testing::expect_error<PeerError>(wait, {"rank 1"});
    if (!GetParam())
      testing::expect_error<PeerError>([&] { CudaRuntime::get().wait_on_host(end, kTimeout); }, {"rank 1"});
    ++told;
  });
  const std::int64_t begin = now_ns();
  groups.clear();
  others.clear();
  // Nothing was left that does not end: it would be waited for until its time is over.
  EXPECT_LT(std::chrono::nanoseconds(now_ns() - begin), kTimeout / 2);
}

// As who waits for gradients on their way to the host does, and calls on the group no more.
TEST_F(IpcSignalsOnCard, ADeadRankIsNoticedByWhoWaitsForAStreamBehindTheGroups) {
  auto dead = std::make_shared<std::atomic<int>>(-1);
  std::atomic<std::uint64_t> never = 0;
  on_threads(mortals(2, dead), [&](const Group& g) {
    const CommMemory x = g.allocate(16, kGpu);
    const DeviceStream stream = CudaRuntime::get().current_stream(0);
    if (g.rank() == 1)
      cuda::wait_for_numbers(stream,
                             std::vector<cuda::NumberWait>{{reinterpret_cast<std::uintptr_t>(&never), 1}});
    g.all_reduce_async(Buffer{x.data(), 4, DType::i32, kGpu}).wait();
    if (g.rank() == 1) return dead->store(1);
    while (*dead < 0) std::this_thread::yield();
    const DeviceEvent end = CudaRuntime::get().record(stream);
    testing::expect_error<PeerError>(
        [&] { (void)CudaRuntime::get().wait_on_host(end, std::chrono::seconds(5)); }, {"rank 1"});
    EXPECT_TRUE(passes_soon(end));
    never = 1;
  });
}

TEST_F(IpcSignalsOnCard, AWaitIsEndedByTheHost) {
  const std::shared_ptr<void> pages(std::aligned_alloc(4096, IpcCounters::bytes_for(2)), std::free);
  std::memset(pages.get(), 0, IpcCounters::bytes_for(2));
  const CommMemory memory(pages, IpcCounters::bytes_for(2));
  IpcCounters zero(memory, 0, 2);
  IpcCounters one(memory, 1, 2);
  const DeviceStream stream = CudaRuntime::get().current_stream(0);
  one.write(IpcCounters::Step::ready, 7, stream);
  const std::array peer{1};
  zero.wait(IpcCounters::Step::ready, 7, stream, peer);
  EXPECT_TRUE(passes_soon(CudaRuntime::get().record(stream)));
  // Of the round before in the same place nobody takes it for this one.
  zero.wait(IpcCounters::Step::ready, 7 + IpcCounters::kRounds, stream, peer);
  const DeviceEvent end = CudaRuntime::get().record(stream);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(CudaRuntime::get().passed(end));
  zero.release(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(CudaRuntime::get().passed(end));
  zero.release(1);
  EXPECT_TRUE(passes_soon(end));
}

}  // namespace
}  // namespace lockstep
