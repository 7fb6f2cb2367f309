// Every kernel on every instruction set of this machine against the plain reference, bit for bit.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "comm/kernel/copy.h"
#include "comm/kernel/reduce.h"
#include "comm/kernel_reference.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using testing::first_difference;
using testing::reference_reduce;

using Bytes = std::vector<std::byte>;

void use_targets(std::int64_t targets) {  // 0: all of this machine
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// One bit for each target that this machine can run and the kernels were compiled for, the best first.
std::vector<std::int64_t> runnable_targets() {
  std::vector<std::int64_t> found;
  for (std::int64_t bits = hwy::SupportedTargets(); bits != 0; bits &= bits - 1) {
    const std::int64_t bit = bits & -bits;
    use_targets(bit);
    if (std::string_view(hwy::TargetName(bit)) == kernel::target_name()) found.push_back(bit);
  }
  use_targets(0);
  return found;
}

std::string name_of_target(std::int64_t target) {
  use_targets(target);
  std::string name = kernel::target_name();
  use_targets(0);
  return name;
}

// Elements that hurt: infinities, NaN, subnormals, both zeros, the largest and values that overflow or
// cancel, among ordinary numbers and plain random bits.
template <class T>
T awkward(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  const auto pick = random() % 8;
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    const bool half = std::is_same_v<T, Half>;
    constexpr std::array<std::uint16_t, 10> halves = {0x0000, 0x8000, 0x7c00, 0xfc00, 0x7e01,
                                                      0x7d01, 0x0001, 0x83ff, 0x7bff, 0xfbff};
    constexpr std::array<std::uint16_t, 10> bfloats = {0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc1,
                                                       0x7f81, 0x0001, 0x807f, 0x7f7f, 0xff7f};
    if (pick == 0) return {(half ? halves : bfloats)[bits % 10]};
    if (pick == 1) return {static_cast<std::uint16_t>(bits)};
    const float value = static_cast<float>(static_cast<std::int64_t>(bits) >> 40) * 0x1p-18F;
    if constexpr (std::is_same_v<T, Half>)
      return to_half(value);
    else
      return to_bfloat16(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    using Limits = std::numeric_limits<T>;
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    constexpr std::array<T, 10> special = {T(0),
                                           -T(0),
                                           Limits::infinity(),
                                           -Limits::infinity(),
                                           Limits::quiet_NaN(),
                                           Limits::denorm_min(),
                                           -Limits::denorm_min() * 77,
                                           Limits::min(),
                                           Limits::max(),
                                           Limits::lowest()};
    if (pick == 0) return special[bits % 10];
    if (pick == 1) return std::bit_cast<T>(static_cast<Bits>(bits));
    return static_cast<T>(static_cast<std::int64_t>(bits)) * static_cast<T>(0x1p-60);
  } else {
    if (pick == 0) return bits % 2 == 0 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
    return static_cast<T>(bits);
  }
}

Bytes awkward_array(DType dtype, std::size_t count, std::uint64_t seed) {
  Bytes bytes(count * size_of(dtype));
  std::mt19937_64 random(seed);
  testing::with_element(dtype, [&](auto element) {
    using T = decltype(element);
    for (std::size_t i = 0; i < count; ++i) {
      const T value = awkward<T>(random);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return bytes;
}

// `bytes` somewhere in a larger block, off any alignment, with guards that must not change.
class Placed {
 public:
  Placed(const Bytes& bytes, std::size_t shift)
      : block_(bytes.size() + 2 * kGuard, std::byte{0xa5}), shift_(kGuard / 2 + shift), size_(bytes.size()) {
    if (size_ > 0) std::memcpy(data(), bytes.data(), size_);
  }
  std::byte* data() { return block_.data() + shift_; }
  bool guards_intact() const {
    for (std::size_t i = 0; i < block_.size(); ++i)
      if ((i < shift_ || i >= shift_ + size_) && block_[i] != std::byte{0xa5}) return false;
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 256;
  Bytes block_;
  std::size_t shift_;
  std::size_t size_;
};

enum class Outs { separate, aliases };

std::string describe(DType dtype, ReduceOp op, std::size_t n, std::size_t count) {
  return std::string(to_string(dtype)) + " " + to_string(op) + " of " + std::to_string(n) + " × " +
         std::to_string(count);
}

// reduce_tree with misaligned inputs into `out_count` outs, or into all inputs, against the reference.
void check_tree(DType dtype, ReduceOp op, std::size_t n, std::size_t count, int divisor, Outs kind,
                std::size_t out_count = 1) {
  SCOPED_TRACE(describe(dtype, op, n, count) + " / " + std::to_string(divisor));
  std::vector<Bytes> arrays;
  std::vector<Placed> placed;
  for (std::size_t k = 0; k < n; ++k) {
    arrays.push_back(awkward_array(dtype, count, 1000 * n + 10 * count + k));
    placed.emplace_back(arrays.back(), (k * 8 + k) % 61);
  }
  const std::size_t bytes = count * size_of(dtype);
  std::vector<Placed> separate;
  for (std::size_t k = 0; kind == Outs::separate && k < out_count; ++k)
    separate.emplace_back(Bytes(bytes), 3 * k + 1);

  std::vector<const void*> plain;
  std::vector<const void*> ins;
  for (auto& array : arrays) plain.push_back(array.data());
  for (auto& place : placed) ins.push_back(place.data());
  std::vector<Placed>& targets = kind == Outs::aliases ? placed : separate;
  std::vector<void*> outs;
  for (auto& place : targets) outs.push_back(place.data());

  Bytes expected(bytes);
  reference_reduce(expected.data(), plain, count, dtype, op, divisor);
  kernel::reduce_tree(outs, ins, count, {.dtype = dtype, .op = op, .divisor = static_cast<double>(divisor)});
  for (auto& place : targets) {
    ASSERT_EQ(first_difference(place.data(), expected.data(), count, dtype), -1);
    ASSERT_TRUE(place.guards_intact());
  }
}

template <class F>
void for_each_case(F&& f) {
  for (DType dtype : kAllDTypes)
    for (ReduceOp op : kAllReduceOps)
      if (supports(op, dtype)) f(dtype, op);
}

constexpr std::size_t kInputs[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 32, 33};

class KernelTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { use_targets(GetParam()); }
  void TearDown() override { use_targets(0); }
};

TEST_P(KernelTest, TreeOfAnyNumberOfInputs) {
  for_each_case([](DType dtype, ReduceOp op) {
    for (std::size_t n : kInputs)
      check_tree(dtype, op, n, 157, static_cast<int>(n), Outs::separate, 1 + n % 3);
  });
}

TEST_P(KernelTest, OutsThatAreTheInputs) {
  for_each_case([](DType dtype, ReduceOp op) {
    for (std::size_t n : kInputs) check_tree(dtype, op, n, 143, static_cast<int>(n), Outs::aliases);
  });
}

TEST_P(KernelTest, AnyCount) {
  for_each_case([](DType dtype, ReduceOp op) {
    for (std::size_t count = 0; count <= 132; ++count) {
      check_tree(dtype, op, 2, count, 2, Outs::aliases);
      check_tree(dtype, op, 5, count, 5, Outs::separate, 2);
    }
  });
}

TEST_P(KernelTest, ManyBlocks) {  // more elements than a temporary of any type holds
  for_each_case([](DType dtype, ReduceOp op) {
    check_tree(dtype, op, 4, 9001, 4, Outs::separate, 4);
    check_tree(dtype, op, 11, 9001, 11, Outs::aliases);
  });
}

TEST_P(KernelTest, AverageByAnyDivisor) {
  for (DType dtype : kAllDTypes)
    for (int divisor : {1, 2, 3, 5, 7, 8, 100, 1024, 65536, 1000003})
      for (std::size_t n : {1, 2, 6, 9}) check_tree(dtype, ReduceOp::avg, n, 1031, divisor, Outs::separate);
}

// Subtrees one by one, put together by combine, then finished: the bits of the whole tree.
TEST_P(KernelTest, TreesInPartsThenFinish) {
  constexpr std::size_t count = 3333;
  for_each_case([](DType dtype, ReduceOp op) {
    for (std::size_t n : kInputs) {
      SCOPED_TRACE(describe(dtype, op, n, count));
      std::vector<Bytes> arrays;
      std::vector<const void*> ins;
      for (std::size_t k = 0; k < n; ++k) arrays.push_back(awkward_array(dtype, count, 77 * n + k));
      for (auto& array : arrays) ins.push_back(array.data());
      const kernel::Reduction reduction{.dtype = dtype, .op = op, .divisor = static_cast<double>(n)};
      Bytes expected(count * size_of(dtype));
      reference_reduce(expected.data(), ins, count, dtype, op, static_cast<int>(n));

      const auto tree = [&](std::span<const void* const> of, Placed& to) {
        void* const out = to.data();
        kernel::reduce_tree({&out, 1}, of, count, kernel::partial(reduction));
      };
      Placed sum(Bytes(expected.size()), 5);
      if (n == 1) {
        tree(ins, sum);
      } else {
        const std::size_t left = std::bit_floor(n - 1);
        Placed right(Bytes(expected.size()), 6);
        tree(std::span(ins).first(left), sum);
        tree(std::span(ins).subspan(left), right);
        kernel::combine(sum.data(), sum.data(), right.data(), count, reduction);
      }
      Placed out(Bytes(expected.size()), 9);
      kernel::finish(out.data(), sum.data(), count, reduction);
      kernel::finish(sum.data(), sum.data(), count, reduction);  // also in place
      for (Placed* place : {&out, &sum}) {
        ASSERT_EQ(first_difference(place->data(), expected.data(), count, dtype), -1);
        ASSERT_TRUE(place->guards_intact());
      }
    }
  });
}

TEST_P(KernelTest, CombineInPlaceAndNot) {
  for_each_case([](DType dtype, ReduceOp op) {
    SCOPED_TRACE(describe(dtype, op, 2, 771));
    const Bytes a = awkward_array(dtype, 771, 1);
    const Bytes b = awkward_array(dtype, 771, 2);
    const void* const ins[] = {a.data(), b.data()};
    Bytes expected(a.size());
    reference_reduce(expected.data(), ins, 771, dtype, op, 1);
    const kernel::Reduction reduction{.dtype = dtype, .op = op, .divisor = 2};
    Placed out(Bytes(a.size()), 7);
    Placed over_a(a, 1);
    Placed over_b(b, 2);
    kernel::combine(out.data(), a.data(), b.data(), 771, reduction);
    kernel::combine(over_a.data(), over_a.data(), b.data(), 771, reduction);
    kernel::combine(over_b.data(), a.data(), over_b.data(), 771, reduction);
    for (Placed* place : {&out, &over_a, &over_b}) {
      ASSERT_EQ(first_difference(place->data(), expected.data(), 771, dtype), -1);
      ASSERT_TRUE(place->guards_intact());
    }
  });
}

TEST_P(KernelTest, CopiesFromAnywhereToAnywhere) {
  for (const std::size_t whole : {std::size_t{1}, kernel::kStreamed})
    for (const std::size_t bytes : {0, 1, 4095, 4096, 4097, 70001})
      for (const std::size_t shift : {0, 1, 31, 63}) {
        std::vector<std::uint8_t> from(bytes + 64), to(bytes + 128, 0xee);
        for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint8_t>(i * 31 + i / 251);
        kernel::copy(to.data() + 64 - shift, from.data() + shift, bytes, whole);
        std::vector<std::uint8_t> expected(bytes + 128, 0xee);
        std::copy_n(from.data() + shift, bytes, expected.data() + 64 - shift);
        ASSERT_TRUE(to == expected) << bytes << " bytes, shifted by " << shift;
      }
}

TEST_P(KernelTest, WidensEveryHalf) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(all.size());
  for (DType dtype : {DType::f16, DType::bf16}) {
    kernel::widen(wide.data(), all.data(), all.size(), dtype);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float expected = dtype == DType::f16 ? to_float(Half{all[i]}) : to_float(BFloat16{all[i]});
      ASSERT_EQ(first_difference(&wide[i], &expected, 1, DType::f32), -1) << to_string(dtype) << ' ' << i;
    }
  }
}

// Each 16-bit value, the midpoint to the next one, and the floats on either side of both; then a walk
// through all of f32.
TEST_P(KernelTest, RoundsToNearestEven) {
  for (DType dtype : {DType::f16, DType::bf16}) {
    std::vector<std::uint32_t> bits;
    const int dropped = dtype == DType::f16 ? 13 : 16;
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const auto half = static_cast<std::uint16_t>(i);
      const float value = dtype == DType::f16 ? to_float(Half{half}) : to_float(BFloat16{half});
      const auto exact = std::bit_cast<std::uint32_t>(value);
      for (std::uint32_t at : {exact, exact + (1U << (dropped - 1))})
        for (std::uint32_t step : {~0U, 0U, 1U}) bits.push_back(at + step);
    }
    for (std::uint32_t i = 0; i < 24; ++i)  // midpoints of subnormal halves, down to nothing
      for (std::uint32_t k = 1; k < 4096; k += 2)
        bits.push_back(
            std::bit_cast<std::uint32_t>(std::ldexp(static_cast<float>(k), -37 + static_cast<int>(i))));
    for (std::uint64_t i = 0; i < std::uint64_t{1} << 32; i += 20011)
      bits.push_back(static_cast<std::uint32_t>(i));
    std::vector<std::uint16_t> got(bits.size());
    std::vector<std::uint16_t> expected(bits.size());
    kernel::narrow(got.data(), bits.data(), bits.size(), dtype);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      const auto value = std::bit_cast<float>(bits[i]);
      expected[i] = dtype == DType::f16 ? to_half(value).bits : to_bfloat16(value).bits;
    }
    const auto wrong = first_difference(got.data(), expected.data(), bits.size(), dtype);
    ASSERT_EQ(wrong, -1) << to_string(dtype) << " of bits " << bits[wrong];
  }
}

// Every 16-bit value with others of every kind: NaN must stay NaN, too.
TEST_P(KernelTest, RoundsEverySumOfHalves) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (DType dtype : {DType::f16, DType::bf16})
    for (int other : {0x0000, 0x8000, 0x0001, 0x3c00, 0x3f80, 0x3f81, 0xbf80, 0x7bff, 0x7c00, 0x7f7f, 0x7f80,
                      0xff80, 0x7f81, 0x7fff, 0xffff})
      for (ReduceOp op : {ReduceOp::sum, ReduceOp::product}) {
        const std::vector<std::uint16_t> others(all.size(), static_cast<std::uint16_t>(other));
        const void* const ins[] = {all.data(), others.data(), others.data()};
        std::vector<std::uint16_t> expected(all.size());
        std::vector<std::uint16_t> got(all.size());
        void* const out = got.data();
        reference_reduce(expected.data(), ins, all.size(), dtype, op, 1);
        kernel::reduce_tree({&out, 1}, ins, all.size(), {.dtype = dtype, .op = op});
        const auto wrong = first_difference(got.data(), expected.data(), all.size(), dtype);
        ASSERT_EQ(wrong, -1) << to_string(dtype) << ' ' << to_string(op) << " of " << wrong << " and "
                             << other;
      }
}

TEST_P(KernelTest, HalvesRoundAtEveryNode) {
  // From 2048 on f16 has even numbers alone: 2049 and 2051 are ties.
  const auto reduced = [](std::vector<float> values, ReduceOp op) {
    std::vector<Half> halves;
    std::vector<const void*> ins;
    for (const float value : values) halves.push_back(to_half(value));
    for (const Half& half : halves) ins.push_back(&half);
    Half out;
    void* const outs[] = {&out};
    kernel::reduce_tree(outs, ins, 1, {.dtype = DType::f16, .op = op, .divisor = 3});
    return to_float(out);
  };
  EXPECT_EQ(reduced({2048, 1, 1, 1}, ReduceOp::sum), 2050);  // 2048 + 2; rounded once it is 2052
  EXPECT_EQ(reduced({2048, 1}, ReduceOp::avg), 682.5F);      // 2048 / 3; rounded once it is 683
  EXPECT_EQ(reduced({3, 683, 3}, ReduceOp::product), 6144);  // 2048 · 3; rounded once it is 6148
  EXPECT_EQ(reduced({60000, 60000}, ReduceOp::avg), std::numeric_limits<float>::infinity());
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, KernelTest, ::testing::ValuesIn(runnable_targets()),
                         [](const auto& target) { return name_of_target(target.param); });

TEST(Kernel, RejectsWhatHasNoMeaning) {
  float x = 1;
  void* const outs[] = {&x};
  const void* const ins[] = {&x};
  EXPECT_THROW(kernel::reduce_tree(outs, ins, 1, {.dtype = DType::f32, .op = ReduceOp::bit_or}), UsageError);
  EXPECT_THROW(kernel::reduce_tree(outs, ins, 1, {.op = ReduceOp::avg, .divisor = 0}), UsageError);
  EXPECT_EQ(x, 1);
}

TEST(Kernel, UsesTheBestTargetOfTheMachine) {
  use_targets(0);
  EXPECT_EQ(kernel::target_name(), name_of_target(runnable_targets().front()));
}

}  // namespace
}  // namespace lockstep
