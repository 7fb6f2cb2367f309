// Private memory goes through windows of shared memory: several of them one after another, and calls close
// behind each other, where a window that is written before all have read it shows.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

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

}  // namespace
}  // namespace lockstep::testing
