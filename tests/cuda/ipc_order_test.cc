// Calls of the engine ipc in flight, on memory of their own and on the same, over a group and a part of it,
// with what follows on them and what the caller's stream does in between: the result is that of one after the
// other.
#include <algorithm>
#include <random>

#include "comm/thread_ranks.h"
#include "cuda/gpu.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

using testing::kGpu;

constexpr std::size_t kCount = 4096;
constexpr InitOptions kOnGpus{.timeout = std::chrono::seconds(60), .device = Device::Kind::cuda};

using Numbers = std::vector<std::uint32_t>;  // sums wrap, so any order of them has the same bits

// What every rank's memory should hold; all ranks draw the same.
class Reference {
 public:
  explicit Reference(int ranks) : memory_(static_cast<std::size_t>(ranks), Numbers(kCount)) {}

  Numbers& of(int rank) { return memory_[static_cast<std::size_t>(rank)]; }
  void all_reduce(std::size_t at, std::size_t count) { all_reduce_in_parts(at, count, 1); }
  // Among ranks r, r + parts, r + 2 parts, ….
  void all_reduce_in_parts(std::size_t at, std::size_t count, std::size_t parts) {
    for (std::size_t first = 0; first < std::min(parts, memory_.size()); ++first)
      for (std::size_t i = at; i < at + count; ++i) {
        std::uint32_t sum = 0;
        for (std::size_t r = first; r < memory_.size(); r += parts) sum += memory_[r][i];
        for (std::size_t r = first; r < memory_.size(); r += parts) memory_[r][i] = sum;
      }
  }
  // Slice r of `count` goes to rank r's `to`.
  void reduce_scatter(std::size_t at, std::size_t to, std::size_t count) {
    const std::vector<Numbers> before = memory_;
    for (std::size_t r = 0; r < memory_.size(); ++r)
      for (std::size_t i = 0; i < count; ++i) {
        std::uint32_t sum = 0;
        for (const Numbers& one : before) sum += one[at + r * count + i];
        memory_[r][to + i] = sum;
      }
  }
  void all_gather(std::size_t at, std::size_t to, std::size_t count) {
    const std::vector<Numbers> before = memory_;
    for (Numbers& one : memory_)
      for (std::size_t r = 0; r < before.size(); ++r)
        for (std::size_t i = 0; i < count; ++i) one[to + r * count + i] = before[r][at + i];
  }
  void copy(std::size_t from, std::size_t to, std::size_t count) {
    for (Numbers& one : memory_)
      std::copy_n(one.begin() + static_cast<std::ptrdiff_t>(from), count,
                  one.begin() + static_cast<std::ptrdiff_t>(to));
  }

 private:
  std::vector<Numbers> memory_;
};

// Draws what to do next, alike on all ranks, does it on the GPU and to the reference.
class Player {
 public:
  Player(const Group& group, unsigned seed)
      : group_(group),
        half_(group.split(group.rank() % 2)),
        draw_(seed),
        memory_(group.allocate(kCount * 4, kGpu)),
        reference_(group.size()) {
    fill(0, kCount);
  }

  void play(int calls) {
    for (int i = 0; i < calls; ++i) step();
    wait_for_all();
    const testing::Bytes got = testing::download(memory_.data(), kCount * 4);
    ASSERT_EQ(std::memcmp(got.data(), reference_.of(group_.rank()).data(), got.size()), 0);
  }

 private:
  std::size_t number(std::size_t below) { return draw_() % below; }
  std::uint32_t* at(std::size_t i) const { return memory_.as<std::uint32_t>() + i; }
  Buffer part(std::size_t i, std::size_t count) const { return {at(i), count, DType::i32, kGpu}; }

  void step() {
    const auto ranks = static_cast<std::size_t>(group_.size());
    const std::size_t what = number(18);
    const std::size_t count = 1 + number(300);
    const std::size_t i = number(kCount / 2 - ranks * count);  // [i, i + ranks * count) is below the half
    const std::size_t j = kCount / 2 + number(kCount / 2 - ranks * count);  // and this behind it
    if (what < 8) {
      works_.push_back(group_.all_reduce_async(part(what % 2 == 0 ? i : j, count)));
      reference_.all_reduce(what % 2 == 0 ? i : j, count);
    } else if (what < 10) {
      works_.push_back(group_.reduce_scatter_async(part(i, ranks * count), part(j, count)));
      reference_.reduce_scatter(i, j, count);
    } else if (what < 12) {
      works_.push_back(group_.all_gather_async(part(j, count), part(i, ranks * count)));
      reference_.all_gather(j, i, count);
    } else if (what < 14) {
      works_.push_back(group_.all_reduce_async(part(i, count)).then([to = at(j), from = at(i), count] {
        DeviceRuntime& runtime = runtime_of(kGpu);
        runtime.copy(to, from, count * 4, runtime.current_stream(0));
      }));
      reference_.all_reduce(i, count);
      reference_.copy(i, j, count);
    } else if (what == 14) {
      group_.all_reduce(part(i, count));
      reference_.all_reduce(i, count);
    } else if (what == 15) {
      wait_for_all();
      fill(i, count);
    } else {  // two groups' calls on the same memory are in order by the caller's stream
      wait_for_all();
      works_.push_back(half_.all_reduce_async(part(i, count)));
      works_.push_back(half_.all_reduce_async(part(j, count)));
      if (what == 16) half_.all_reduce(part(i, count));
      if (what == 16) reference_.all_reduce_in_parts(i, count, 2);
      reference_.all_reduce_in_parts(i, count, 2);
      reference_.all_reduce_in_parts(j, count, 2);
      wait_for_all();
    }
  }
  void wait_for_all() {  // on the caller's stream
    for (const Work& work : works_) work.wait();
    works_.clear();
  }

  void fill(std::size_t i, std::size_t count) {
    for (int r = 0; r < group_.size(); ++r)
      for (std::size_t k = i; k < i + count; ++k) reference_.of(r)[k] = static_cast<std::uint32_t>(draw_());
    testing::upload(at(i), reference_.of(group_.rank()).data() + i, count * 4);
  }

  const Group& group_;
  Group half_;
  std::mt19937 draw_;
  CommMemory memory_;
  Reference reference_;
  std::vector<Work> works_;
};

class IpcOrder : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, IpcOrder, ::testing::Values(2, 3, 4));

TEST_P(IpcOrder, CallsInFlightAreAsOneAfterTheOther) {
  LOCKSTEP_NEEDS_GPU();
  for (unsigned seed = 0; seed < 4; ++seed)
    testing::on_threads(thread_groups(GetParam(), kOnGpus),
                        [&](const Group& g) { Player(g, seed).play(200); });
}

}  // namespace
}  // namespace lockstep
