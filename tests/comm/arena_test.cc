// Comm memory: zeroed, aligned, given back, refused in one line.
#include "comm/shm/arena.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"

namespace lockstep::testing {
namespace {

constexpr std::size_t kMega = std::size_t{1} << 20;

bool all_zero(const CommMemory& memory) {
  const std::byte* const data = memory.as<std::byte>();
  return std::all_of(data, data + memory.bytes(), [](std::byte b) { return b == std::byte{0}; });
}

std::shared_ptr<shm::Arena> small_arena(std::uint64_t region_bytes) {
  const shm::ArenaShape shape{.ranks = 2, .head_bytes = 5000, .region_bytes = region_bytes};
  return std::make_shared<shm::Arena>(shm::Arena::create(shape), shape);
}

// Three hold a block; whoever is last lets the memory go, and its place is free again.
TEST(SharedMemory, GoesWithTheLastWhoHoldsIt) {
  const auto arena = small_arena(8 * kMega);
  for (int last = 0; last < 3; ++last) {
    const std::uint64_t place = arena->share(0, 5 * kMega, 3);
    std::vector<CommMemory> handles;
    for (int k = 0; k < 3; ++k) handles.push_back(arena->hold(place, 5 * kMega));
    EXPECT_TRUE(all_zero(handles[0]));
    std::memset(handles[0].data(), 0xff, 5 * kMega);
    expect_error<SystemError>([&] { arena->allocate(0, 5 * kMega); }, {"is full"});
    for (int k = 0; k < 3; ++k)
      if (k != last) handles[static_cast<std::size_t>(k)] = {};
    EXPECT_EQ(handles[static_cast<std::size_t>(last)].as<unsigned char>()[5 * kMega - 1], 0xff);
    expect_error<SystemError>([&] { arena->allocate(0, 5 * kMega); }, {"is full"});
    handles.clear();
    EXPECT_TRUE(all_zero(arena->allocate(0, 5 * kMega)));
  }
}

// What a peer may yet write to is nobody's any more, wherever in it; what lies beside it is used again.
TEST(CommMemory, ThatIsKeptIsNotHandedOutAgain) {
  const auto arena = small_arena(8 * kMega);
  CommMemory first = arena->allocate(0, 2 * kMega);
  CommMemory second = arena->allocate(0, 2 * kMega);
  CommMemory third = arena->allocate(0, 2 * kMega);
  const std::byte* const kept = second.as<std::byte>();
  arena->keep(kept + kMega + 4);
  int elsewhere = 0;
  arena->keep(&elsewhere);
  first = second = third = {};
  std::vector<CommMemory> again;
  for (int k = 0; k < 3; ++k) again.push_back(arena->allocate(0, 2 * kMega));
  expect_error<SystemError>([&] { arena->allocate(0, 2 * kMega); }, {"is full"});
  for (const CommMemory& memory : again)
    EXPECT_TRUE(memory.as<std::byte>() + 2 * kMega <= kept || memory.as<std::byte>() >= kept + 2 * kMega);
}

TEST(SharedMemory, IsOneBlockForAllRanks) {
  on_threads(thread_groups(4), [](const Group& g) {
    EXPECT_TRUE(g.shares_memory());
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{5}, std::size_t{4096}, 3 * kMega + 1}) {
      const CommMemory memory = g.allocate_shared(bytes);
      EXPECT_EQ(memory.bytes(), bytes);
      EXPECT_TRUE(all_zero(memory));
      g.barrier();
      const std::size_t part = bytes / 4;
      std::memset(memory.as<char>() + part * static_cast<std::size_t>(g.rank()), 'a' + g.rank(), part);
      g.barrier();
      for (std::size_t k = 0; k < 4 * part; ++k)
        ASSERT_EQ(memory.as<char>()[k], static_cast<char>('a' + k / part)) << k << " of " << bytes;
    }
    const Group half = g.split(g.rank() / 2);
    const CommMemory own = half.allocate_shared(8);
    if (half.rank() == 1) *own.as<int>() = g.rank();
    half.barrier();
    EXPECT_EQ(*own.as<int>(), g.rank() / 2 * 2 + 1);
  });
}

// All are told alike, and the group goes on.
TEST(SharedMemory, IsRefusedOnEveryRank) {
  on_threads(thread_groups(3), [](const Group& g) {
    expect_error<UsageError>([&] { g.allocate_shared(g.rank() == 2 ? 9 : 8); },
                             {"rank 0 asks for 8", "rank 2 for 9", "the same everywhere"});
    expect_error<SystemError>([&] { g.allocate_shared(std::size_t{1} << 60); }, {"cannot allocate"});
    EXPECT_EQ(g.all_reduce(1), 3);
  });
}

TEST(CommMemory, IsZeroedAndAligned) {
  on_threads(thread_groups(2), [](const Group& g) {
    for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4097},
                              2 * kMega - 1, 2 * kMega, 5 * kMega + 3, 64 * kMega})
      for (int again = 0; again < 2; ++again) {
        const CommMemory memory = g.allocate(bytes);
        ASSERT_NE(memory.data(), nullptr);
        EXPECT_EQ(memory.bytes(), bytes);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % 4096, 0U);
        EXPECT_TRUE(all_zero(memory)) << bytes << " bytes, time " << again;
        std::memset(memory.data(), 0xff, bytes);
      }
  });
}

// What AMD's Zen looks a line of the first cache up by, beside bits 6 to 11 of its address: found by
// experiment, published in "Take A Way" (Lipp and others, 2020).
unsigned zen_tag(std::uint64_t address) {
  const auto bit = [&](int b) { return static_cast<unsigned>(address >> b) & 1U; };
  return (bit(12) ^ bit(27)) | (bit(13) ^ bit(26)) << 1 | (bit(14) ^ bit(25)) << 2 |
         (bit(15) ^ bit(20)) << 3 | (bit(16) ^ bit(21)) << 4 | (bit(17) ^ bit(22)) << 5 |
         (bit(18) ^ bit(23)) << 6 | (bit(19) ^ bit(24)) << 7;
}

TEST(CommMemory, OfRanksThatAllocateAlikeSharesNoTagInTheFirstCache) {
  for (std::uint64_t region : {kMega, 64 * kMega, 128 * kMega, 130 * kMega, 1024 * kMega, 65536 * kMega}) {
    const shm::ArenaShape shape{.ranks = 64, .head_bytes = 5000, .region_bytes = region};
    for (std::uint64_t block : {std::uint64_t{0}, std::uint64_t{4096}, 12 * kMega / 2, 777 * kMega + 8192}) {
      std::vector<unsigned> tags;
      for (int r = 0; r < shape.ranks; ++r)
        tags.push_back(zen_tag(0x7f12'3450'0000 + shape.region_offset(r) + block));
      std::ranges::sort(tags);
      EXPECT_EQ(std::ranges::adjacent_find(tags), tags.end()) << region << " + " << block;
    }
  }
}

TEST(CommMemory, TooLargeIsRefusedInOneLine) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& g) {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    for (std::size_t bytes : {most, most - 4095, most - 2 * kMega + 1, most / 2, std::size_t{1} << 40,
                              (std::size_t{64} << 30) + 1})
      expect_error<SystemError>([&] { (void)g.allocate(bytes); }, {"cannot allocate", "comm memory"});
    expect_error<SystemError>([&] { (void)g.allocate(std::size_t{1} << 40); }, {"1 TiB", "LOCKSTEP_ARENA"});
    const CommMemory memory = g.allocate(4096);
    g.all_reduce(Buffer{memory.data(), 1024, DType::f32});
  });
}

TEST(CommMemory, MayOutliveTheGroup) {
  std::vector<CommMemory> kept(2);
  with_own_groups(thread_groups(2), [&](Group g) {
    const auto me = static_cast<std::size_t>(g.rank());
    kept[me] = g.allocate(3 * kMega);
    kept[me].as<float>()[7] = 1;
    g.all_reduce(Buffer{kept[me].data(), 100, DType::f32}, {.algorithm = "direct"});
  });
  const CommMemory copy = kept[0];
  kept[0] = {};
  EXPECT_EQ(copy.as<float>()[7], 2);
  std::memset(copy.data(), 1, copy.bytes());
  EXPECT_EQ(kept[1].as<float>()[7], 2);
}

TEST(Arena, FindsTheRoomThatWasGivenBack) {
  const auto arena = small_arena(8 * kMega);
  for (int round = 0; round < 200; ++round) {
    std::vector<CommMemory> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(arena->allocate(1, kMega));
    expect_error<SystemError>([&] { (void)arena->allocate(1, 1); }, {"rank 1's region of 8 MiB is full"});
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(static_cast<unsigned>(round)));
    while (!blocks.empty()) blocks.pop_back();
    const CommMemory whole = arena->allocate(1, 8 * kMega);  // all joined again
    ASSERT_TRUE(arena->offset_of(whole.data(), whole.bytes()));
  }
}

// Random takes and returns: no two blocks share a byte, every block is zero when it comes.
TEST(Arena, BlocksNeverOverlap) {
  const auto arena = small_arena(16 * kMega);
  std::mt19937 random(7);
  std::vector<CommMemory> blocks;
  int refused = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    if (blocks.size() > 12 || (random() % 3 == 0 && !blocks.empty())) {
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(random() % blocks.size()));
      continue;
    }
    const std::size_t bytes = random() % 10 == 0 ? 2 * kMega + random() % kMega : 1 + random() % 300'000;
    try {
      const CommMemory fresh = arena->allocate(static_cast<int>(random() % 2), bytes);
      auto* const data = fresh.as<std::byte>();
      for (std::size_t at : {std::size_t{0}, bytes / 2, bytes - 1}) ASSERT_EQ(data[at], std::byte{0});
      for (const CommMemory& other : blocks)
        ASSERT_TRUE(data + bytes <= other.as<std::byte>() || other.as<std::byte>() + other.bytes() <= data);
      std::memset(data, 0xee, bytes);
      blocks.push_back(fresh);
    } catch (const SystemError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  blocks.clear();
  EXPECT_NO_THROW((void)arena->allocate(0, 16 * kMega));
  EXPECT_NO_THROW((void)arena->allocate(1, 16 * kMega));
}

TEST(Arena, ThreadsMayAllocateAtOnce) {
  const auto arena = small_arena(64 * kMega);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const CommMemory block = arena->allocate(t % 2, 10'000);
        ASSERT_TRUE(all_zero(block));
        std::memset(block.data(), t + 1, block.bytes());
        ASSERT_EQ(block.as<char>()[9999], t + 1);
      }
    });
}

}  // namespace
}  // namespace lockstep::testing
