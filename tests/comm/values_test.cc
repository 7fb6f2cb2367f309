// What a program exchanges without making buffers: numbers, vectors, texts, means.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/mean.h"

namespace lockstep::testing {
namespace {

constexpr int kRanks[] = {1, 2, 3, 4};

void on_ranks(const std::function<void(const Group&, int rank, int size)>& body) {
  for (const int size : kRanks)
    on_threads(thread_groups(size, {.timeout = std::chrono::seconds(20)}), [&](const Group& g) {
      SCOPED_TRACE("rank " + std::to_string(g.rank()) + " of " + std::to_string(size));
      body(g, g.rank(), size);
    });
}

template <class T>
class NumbersTest : public ::testing::Test {};
using NumberTypes = ::testing::Types<double, float, std::int64_t, long long, std::int32_t, short, std::int8_t,
                                     char, std::uint8_t>;
TYPED_TEST_SUITE(NumbersTest, NumberTypes);

TYPED_TEST(NumbersTest, AreReducedAndGathered) {
  on_ranks([](const Group& g, int rank, int n) {
    const auto x = static_cast<TypeParam>(rank + 1);
    EXPECT_EQ(g.all_reduce(x), static_cast<TypeParam>(n * (n + 1) / 2));
    EXPECT_EQ(g.all_reduce(x, {.op = ReduceOp::max}), static_cast<TypeParam>(n));
    EXPECT_EQ(g.all_reduce(x, {.op = ReduceOp::min}), static_cast<TypeParam>(1));
    std::vector<TypeParam> all;
    for (int r = 0; r < n; ++r) all.push_back(static_cast<TypeParam>(r + 1));
    EXPECT_EQ(g.all_gather(x), all);
  });
}

template <class T>
class ListsTest : public ::testing::Test {};
using ListTypes = ::testing::Types<double, float, std::int64_t, std::int32_t, std::int8_t, std::uint8_t>;
TYPED_TEST_SUITE(ListsTest, ListTypes);

// Sizes 0, 1, odd, and one that travels in pieces.
TYPED_TEST(ListsTest, AreTakenInPlaceOfBuffers) {
  on_ranks([](const Group& g, int rank, int n) {
    const auto size = static_cast<std::size_t>(n);
    const auto own = static_cast<TypeParam>(rank + 1);
    const auto sum = static_cast<TypeParam>(n * (n + 1) / 2);
    for (const std::size_t count : {0u, 1u, 7u, 20'001u}) {
      using List = std::vector<TypeParam>;
      List x(count, own);
      const List constant = x;
      g.all_reduce(x);
      EXPECT_EQ(x, List(count, sum));
      List out(count);
      g.all_reduce(constant, out);
      EXPECT_EQ(out, List(count, sum));
      g.all_reduce(std::span(out).subspan(count / 2), {.op = ReduceOp::max});
      for (std::size_t i = count / 2; i < count; ++i) ASSERT_EQ(out[i], sum);

      List all(count * size);
      g.all_gather(constant, all);
      for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<TypeParam>(i / count + 1));
      List part(count);
      g.reduce_scatter(all, part);
      EXPECT_EQ(part, List(count, static_cast<TypeParam>((rank + 1) * n)));
      g.scatter(all, part, n - 1);
      EXPECT_EQ(part, constant);
      List swapped(all.size());
      g.all_to_all(all, swapped);
      EXPECT_EQ(swapped, List(all.size(), own));

      List root_only(rank == 0 ? count : 0);
      g.reduce(constant, root_only, 0);
      EXPECT_EQ(root_only, List(rank == 0 ? count : 0, sum));
      List gathered(rank == 0 ? all.size() : 0);
      g.gather(constant, gathered, 0);
      EXPECT_EQ(gathered, rank == 0 ? all : List());

      x = constant;
      g.broadcast(x, n - 1);
      EXPECT_EQ(x, List(count, static_cast<TypeParam>(n)));
      if (n > 1 && rank == 0) g.send(constant, 1);
      if (n > 1 && rank == 1) {
        g.recv(x, 0);
        EXPECT_EQ(x, List(count, 1));
      }
    }
  });
}

TYPED_TEST(ListsTest, OfDifferentLengthsAreGathered) {
  on_ranks([](const Group& g, int rank, int n) {
    // None has any; the first has none; all but one have none; odd ones.
    const std::vector<std::function<std::size_t(int)>> lengths = {
        [](int) { return std::size_t{0}; }, [](int r) { return static_cast<std::size_t>(r); },
        [n](int r) { return std::size_t(r == n - 1 ? 1 : 0); },
        [](int r) { return static_cast<std::size_t>(5'001 * (3 - r)); }};
    for (const auto& length : lengths) {
      std::vector<std::vector<TypeParam>> expected;
      for (int r = 0; r < n; ++r) {
        expected.emplace_back(length(r));
        for (std::size_t i = 0; i < expected.back().size(); ++i)
          expected.back()[i] = static_cast<TypeParam>((static_cast<std::size_t>(r) * 31 + i) % 100);
      }
      EXPECT_EQ(g.all_gather(expected[static_cast<std::size_t>(rank)]), expected);
    }
  });
}

// × 8 bytes is nothing in 64 bits: who trusts another rank's number writes beyond its memory.
TEST(Lists, OfALengthThatNoMemoryHasAreRefusedByAll) {
  on_ranks([](const Group& g, int rank, int n) {
    double x = 1;
    const std::size_t count = rank == n - 1 ? std::size_t{1} << 61 : 1;
    expect_error<UsageError>([&] { (void)gather_elements(g, ConstBuffer(&x, count, DType::f64)); },
                             {"all_gather", "rank " + std::to_string(n - 1), std::to_string(1LL << 61)});
    expect_error<UsageError>([&] { (void)gather_elements(g, ConstBuffer(nullptr, 4, DType::f32)); },
                             {"all_gather", "null buffer of 4 f32"});
    EXPECT_EQ(g.all_reduce(1), n);
  });
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which end the program there
TEST(Lists, ThatDoNotFitIntoMemoryAreATypedError) {
  on_threads(thread_groups(2), [](const Group& g) {
    char x = 1;
    const ConstBuffer huge(&x, std::size_t{1} << 48, DType::u8);
    expect_error<SystemError>([&] { (void)gather_elements(g, huge); }, {"all_gather", "memory"});
  });
}
#endif

TEST(Lists, ArraysAndHalves) {
  on_ranks([](const Group& g, int rank, int n) {
    double plain[3] = {1, 2, static_cast<double>(rank)};
    g.all_reduce(plain);
    EXPECT_EQ(plain[2], n * (n - 1) / 2);
    std::array<float, 2> array = {1, 2};
    g.all_reduce(array, {.op = ReduceOp::avg});
    EXPECT_EQ(array[1], 2);
    std::vector<BFloat16> small(5, to_bfloat16(0.5f));
    g.all_reduce(small);
    for (const BFloat16 x : small) EXPECT_EQ(to_float(x), 0.5f * static_cast<float>(n));
    EXPECT_EQ(g.all_gather(std::vector<Half>(1, to_half(2)))[0].size(), 1u);
  });
}

TEST(Texts, OfAnyLengthAreGatheredAndBroadcast) {
  on_ranks([](const Group& g, int rank, int n) {
    const std::string bytes("a\0\xff\n", 4);  // any bytes
    std::vector<std::string> expected;
    for (int r = 0; r < n; ++r)
      expected.push_back(r == 1 ? "" : bytes + std::string(static_cast<std::size_t>(r) * 9, 'x'));
    EXPECT_EQ(g.all_gather(expected[static_cast<std::size_t>(rank)]), expected);
    EXPECT_EQ(g.all_gather(std::string()), std::vector<std::string>(static_cast<std::size_t>(n)));

    for (const std::string& text : {bytes, std::string(), std::string(100'003, 'y')})
      for (int root = 0; root < n; ++root) {
        std::string x = rank == root ? text : "whatever it was before, of any length";
        g.broadcast(x, root);
        EXPECT_EQ(x, text);
      }
  });
}

TEST(Texts, ARootThatIsNotThereIsRefused) {
  on_threads(thread_groups(2), [](const Group& g) {
    std::string text = "as it was";
    expect_error<UsageError>([&] { g.broadcast(text, 2); }, {"broadcast", "rank 2", "0 to 1"});
    EXPECT_EQ(text, "as it was");
    g.broadcast(text, 0);
  });
}

TEST(Lists, DifferentTypesAreAMismatchThatNamesThem) {
  on_threads(thread_groups(2), [](const Group& g) {
    expect_error<MismatchError>(
        [&] {
          if (g.rank() == 0)
            (void)g.all_gather(std::vector<float>(3));
          else
            (void)g.all_gather(std::vector<double>(2));
        },
        {"all_gather", "f32", "f64", "rank 1"});
  });
}

TEST(Lists, DifferentSizesInPlaceAreAMismatch) {
  on_threads(thread_groups(2), [](const Group& g) {
    std::vector<float> x(static_cast<std::size_t>(3 + g.rank()));
    expect_error<MismatchError>([&] { g.all_reduce(x); }, {"all_reduce", "f32 × 3", "f32 × 4"});
  });
}

TEST(Mean, DividesOnceByTheSumOfWeights) {
  on_ranks([](const Group& g, int rank, int n) {
    // Worker r has r + 1 samples of value r: the mean of means would be another number.
    double sum = 0;
    double weight = 0;
    for (int r = 0; r < n; ++r) {
      sum += r * (r + 1);
      weight += r + 1;
    }
    EXPECT_EQ(mean(g, rank * (rank + 1), rank + 1), sum / weight);
    EXPECT_EQ(mean(g, rank), (n - 1) / 2.0);
    // One worker has nothing.
    const bool idle = n > 1 && rank == 0;
    EXPECT_EQ(mean(g, idle ? 0 : 6, idle ? 0 : 2), 3);
    EXPECT_TRUE(std::isnan(mean(g, 0, 0)));
    EXPECT_TRUE(std::isnan(mean(g, 5, 0)));
  });
}

// The canonical tree over four ranks, and rounding that shows which order was taken.
TEST(Mean, HasTheBitsOfTheCanonicalOrderOnEveryRank) {
  const double values[] = {1, 0x1p-53, 0x1p-53, 0x1p-53};
  ASSERT_NE((values[0] + values[1]) + (values[2] + values[3]),
            ((values[0] + values[1]) + values[2]) + values[3]);
  on_threads(thread_groups(4), [&](const Group& g) {
    EXPECT_EQ(mean(g, values[g.rank()], g.rank() == 0 ? 1 : 0),
              (values[0] + values[1]) + (values[2] + values[3]));
  });
}

TEST(Mean, RefusesWeightsThatAreNone) {
  on_threads(thread_groups(2), [](const Group& g) {
    for (const double weight : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
      expect_error<UsageError>([&] { (void)mean(g, 1, weight); }, {"mean", "weight", "0 or more"});
    EXPECT_EQ(mean(g, 1, 1), 1);
  });
}

// What must not compile: a temporary would take the result with it, and these have no element type.
template <class X>
concept Reducible = requires(const Group& g, X x) {
  g.all_reduce(static_cast<X>(x));
};
static_assert(Reducible<std::vector<float>&>);
static_assert(Reducible<std::span<float>>);
static_assert(!Reducible<std::vector<float>>);
static_assert(!Reducible<const std::vector<float>&>);
static_assert(!Reducible<std::span<const float>>);
static_assert(!Reducible<std::vector<std::string>&>);
static_assert(std::is_void_v<ElementFor<bool>> && std::is_void_v<ElementFor<std::size_t>>);

}  // namespace
}  // namespace lockstep::testing
