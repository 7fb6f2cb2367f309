// Private memory goes through windows of shared memory: several of them one after another, and calls close
// behind each other, where a window that is written before all have read it shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "comm/algo/builtin.h"
#include "comm/call/rank_mask.h"
#include "comm/call/reach.h"
#include "comm/shm/layout.h"
#include "comm/thread_ranks.h"

namespace lockstep::testing {
namespace {

// Element i of rank r's input in one of many calls.
template <class T>
T element(int call, int rank, std::size_t i) {
  std::uint64_t x = (i + 1) * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(call) * 0xbf58476d1ce4e5b9U +
                    static_cast<std::uint64_t>(rank) * 0x94d049bb133111ebU;
  x = (x ^ (x >> 31)) * 0xd6e8feb86659fd93U;
  return static_cast<T>(x >> 32);
}

template <class T>
class Windows : public ::testing::Test {};
using ElementTypes = ::testing::Types<std::uint8_t, std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(Windows, ElementTypes);

// One rank's calls of one number of elements.
template <class T>
class Calls {
 public:
  Calls(const Group& group, std::size_t count, bool in_place)
      : g_(group), n_(static_cast<std::size_t>(group.size())), count_(count), in_place_(in_place) {}

  void run() {
    const std::size_t me = static_cast<std::size_t>(g_.rank());
    const std::size_t all = n_ * count_;
    start(count_, 0, 0, count_);
    g_.all_reduce(in(), out(), kDirect);
    for (std::size_t i = 0; i < count_; ++i) expect(i, sum(i));

    start(all, 0, me * count_, count_);
    g_.reduce_scatter(in(), out(), kDirect);
    for (std::size_t i = 0; i < count_; ++i) expect(i, sum(me * count_ + i));

    start(count_, me * count_, 0, all);
    g_.all_gather(in(), out(), kDirect);
    for (std::size_t i = 0; i < all; ++i) expect(i, of(static_cast<int>(i / count_), i % count_));

    start(all, 0, 0, all);
    g_.all_to_all(in(), out(), kDirect);
    for (std::size_t i = 0; i < all; ++i)
      expect(i, of(static_cast<int>(i / count_), me * count_ + i % count_));

    const int root = g_.size() - 1;
    start(count_, 0, 0, count_);
    g_.reduce(in(), out(), root, kDirect);
    for (std::size_t i = 0; i < count_ && g_.rank() == root; ++i) expect(i, sum(i));

    start(count_, 0, 0, count_);
    g_.broadcast(Buffer{give_, count_, kDTypeOf<T>}, root, kDirect);
    take_ = give_;
    for (std::size_t i = 0; i < count_; ++i) expect(i, of(root, i));
    EXPECT_EQ(wrong_, 0U) << g_.rank() << " of " << n_ << ", " << count_ << " elements, in place "
                          << in_place_;
  }

 private:
  const CallOptions kDirect{.algorithm = "direct"};

  // Fresh buffers; in place they lie where a call in place has them.
  void start(std::size_t in_count, std::size_t in_at, std::size_t out_at, std::size_t out_count) {
    ++call_;
    in_count_ = in_count;
    out_count_ = out_count;
    first_.assign(n_ * count_, T{77});
    second_.assign(n_ * count_, T{77});
    give_ = first_.data() + (in_place_ ? in_at : 0);
    take_ = in_place_ ? first_.data() + out_at : second_.data();
    for (std::size_t i = 0; i < in_count; ++i) give_[i] = of(g_.rank(), i);
  }
  ConstBuffer in() const { return {give_, in_count_, kDTypeOf<T>}; }
  Buffer out() const { return {take_, out_count_, kDTypeOf<T>}; }
  T of(int rank, std::size_t i) const { return element<T>(call_, rank, i); }
  T sum(std::size_t i) const {
    std::uint64_t total = 0;
    for (int r = 0; r < g_.size(); ++r) total += static_cast<std::uint64_t>(of(r, i));
    return static_cast<T>(total);
  }
  void expect(std::size_t i, T value) { wrong_ += take_[i] == value ? 0 : 1; }

  const Group& g_;
  std::size_t n_;
  std::size_t count_;
  bool in_place_;
  int call_ = 0;
  std::size_t in_count_ = 0, out_count_ = 0;
  std::vector<T> first_, second_;
  T* give_ = nullptr;
  T* take_ = nullptr;
  std::size_t wrong_ = 0;
};

TYPED_TEST(Windows, AreWrittenAgainOnlyWhenAllHaveReadThem) {
  constexpr std::size_t window = kWindowBytes / sizeof(TypeParam);
  for (const int ranks : {2, 3, 7})
    on_threads(thread_groups(ranks), [&](const Group& g) {
      for (const std::size_t count : {window - 1, 3 * window + 3})
        for (const bool in_place : {false, true}) Calls<TypeParam>(g, count, in_place).run();
    });
}

// One rank of very many, whose peers are not there: what it writes into its windows, and behind them.
class LonelyReach final : public Reach {
 public:
  const void* in(int) const override { return nullptr; }
  void* out(int) const override { return nullptr; }
  const void* posted(int) const override { return nullptr; }
  std::size_t windows() const override { return shm::kWindows; }
  std::byte* window(int rank, std::size_t slot) const override {
    return rank == 0 ? own_.data() + slot * kWindowBytes : others_.data();
  }
  void barrier() override {}
  void read_in(int, std::size_t, std::span<std::byte>) override {}
  void read_out(int, std::size_t, std::span<std::byte>) override {}

  bool stays_inside() const {
    return std::all_of(own_.begin() + shm::kWindows * kWindowBytes, own_.end(),
                       [](std::byte b) { return b == kBehind; });
  }

 private:
  static constexpr std::byte kBehind{0xab};
  mutable std::vector<std::byte> own_ = std::vector<std::byte>((shm::kWindows + 4) * kWindowBytes, kBehind);
  mutable std::vector<std::byte> others_ = std::vector<std::byte>(kWindowBytes);
};

// A window has no whole line for each of as many ranks as a group may have.
TEST(WindowsOfManyRanks, SlicesForAllOfThemFitIntoOne) {
  constexpr std::size_t kCount = 300;
  const std::vector<int> nodes(kMostGroupRanks, 0);
  for (const Collective what : {Collective::all_to_all, Collective::reduce_scatter, Collective::scatter})
    for (const DType dtype : {DType::u8, DType::f64}) {
      const std::size_t slice = kCount * size_of(dtype);
      std::vector<std::byte> in(slice * nodes.size());
      std::vector<std::byte> out(what == Collective::all_to_all ? in.size() : slice);
      Call call;
      call.what = what;
      call.in = in.data();
      call.out = out.data();
      call.count = kCount;
      call.dtype = dtype;
      call.root = 0;
      Scratch scratch;
      LonelyReach reach;
      Stage stage{.call = call, .me = 0, .nodes = nodes, .scratch = scratch, .shared = &reach};
      kDirect.run(stage);
      EXPECT_TRUE(reach.stays_inside()) << to_string(what) << " of " << to_string(dtype);
    }
}

}  // namespace
}  // namespace lockstep::testing
