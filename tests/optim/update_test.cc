// The update kernels, on every instruction set of this machine, against plain scalar code, bit for bit.
#include "optim/update.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using kernel::AdamUpdate;
using kernel::Elements;
using kernel::Momentum;
using kernel::SgdUpdate;

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
    if (std::string_view(hwy::TargetName(bit)) == kernel::update_target_name()) found.push_back(bit);
  }
  use_targets(0);
  return found;
}

// Whether a * b + c is rounded once on that target. Elsewhere than on x86 every target of ours has it.
bool fuses(std::int64_t target) {
#if defined(__x86_64__)
  return std::string_view(hwy::TargetName(target)).substr(0, 3) == "AVX";
#else
  return hwy::TargetName(target) != std::string_view("EMU128") &&
         hwy::TargetName(target) != std::string_view("SCALAR");
#endif
}

template <class T>
T madd(bool fused, T a, T b, T c) {
  return fused ? std::fma(a, b, c) : a * b + c;
}

// The definitions of update.h for one element, in the arithmetic's type.
template <class T>
void reference(bool fused, const SgdUpdate& sgd, T& p, T g, T& first, T&) {
  const bool start = sgd.kind == Momentum::start || sgd.kind == Momentum::start_nesterov;
  const bool nesterov = sgd.kind == Momentum::keep_nesterov || sgd.kind == Momentum::start_nesterov;
  const T momentum = static_cast<T>(sgd.momentum);
  if (sgd.weight_decay != 0) g = madd(fused, p, static_cast<T>(sgd.weight_decay), g);
  if (sgd.kind != Momentum::none) {
    first = start ? g : madd<T>(fused, g, static_cast<T>(sgd.gain), first * momentum);
    g = nesterov ? madd(fused, first, momentum, g) : first;
  }
  p = madd(fused, g, static_cast<T>(-sgd.lr), p);
}

template <class T>
void reference(bool fused, const AdamUpdate& adam, T& p, T g, T& first, T& second) {
  if (adam.weight_decay != 0) g = madd(fused, p, static_cast<T>(adam.weight_decay), g);
  if (adam.keep != 1) p *= static_cast<T>(adam.keep);
  first = madd<T>(fused, g, static_cast<T>(1 - adam.beta1), first * static_cast<T>(adam.beta1));
  const T scaled = g * static_cast<T>(1 - adam.beta2);
  second = madd<T>(fused, scaled, g, second * static_cast<T>(adam.beta2));
  const T scale = std::sqrt(second) / static_cast<T>(adam.correction) + static_cast<T>(adam.eps);
  p = p + (static_cast<T>(-adam.step_size) * first) / scale;
}

// How a storage type is read and written by the reference.
template <class S>
struct Storage {
  using Arithmetic = S;
  static S read(S s) { return s; }
  static S write(S t) { return t; }
};
template <>
struct Storage<Half> {
  using Arithmetic = float;
  static float read(Half h) { return to_float(h); }
  static Half write(float f) { return to_half(f); }
};
template <>
struct Storage<BFloat16> {
  using Arithmetic = float;
  static float read(BFloat16 b) { return to_float(b); }
  static BFloat16 write(float f) { return to_bfloat16(f); }
};

template <class S>
struct Case {
  std::vector<S> p, g, first, second;

  explicit Case(std::size_t count, unsigned seed) : p(count), g(count), first(count), second(count) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < count; ++i) {
      const float small = i % 11 == 5 ? 1e-6F : 1.0F;  // subnormal squares in f16
      p[i] = Storage<S>::write(normal(random));
      g[i] = Storage<S>::write(i % 7 == 3 ? -0.0F : normal(random) * small);
      first[i] = Storage<S>::write(normal(random));
      second[i] = Storage<S>::write(std::abs(normal(random)) * small);
    }
  }
  Elements elements(std::size_t begin, std::size_t count) {
    return {kDTypeOf<S>,          p.data() + begin,      g.data() + begin,
            first.data() + begin, second.data() + begin, count};
  }
  template <class Update>
  void refer(bool fused, const Update& update) {
    using T = typename Storage<S>::Arithmetic;
    for (std::size_t i = 0; i < p.size(); ++i) {
      T x = Storage<S>::read(p[i]), m = Storage<S>::read(first[i]), v = Storage<S>::read(second[i]);
      reference<T>(fused, update, x, Storage<S>::read(g[i]), m, v);
      p[i] = Storage<S>::write(x);
      first[i] = Storage<S>::write(m);
      second[i] = Storage<S>::write(v);
    }
  }
};

template <class S>
bool same_bytes(const std::vector<S>& a, const std::vector<S>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(S)) == 0);
}

template <class S>
void expect_same(const Case<S>& a, const Case<S>& b, const std::string& what) {
  EXPECT_TRUE(same_bytes(a.p, b.p)) << what << ": parameters";
  EXPECT_TRUE(same_bytes(a.g, b.g)) << what << ": the gradient was changed";
  EXPECT_TRUE(same_bytes(a.first, b.first)) << what << ": first state";
  EXPECT_TRUE(same_bytes(a.second, b.second)) << what << ": second state";
}

std::vector<SgdUpdate> sgd_updates() {
  std::vector<SgdUpdate> all;
  for (const Momentum kind :
       {Momentum::none, Momentum::start, Momentum::start_nesterov, Momentum::keep, Momentum::keep_nesterov})
    for (const double weight_decay : {0.0, 1e-2})
      all.push_back({.kind = kind, .lr = 0.03, .momentum = 0.9, .gain = 0.7, .weight_decay = weight_decay});
  return all;
}

std::vector<AdamUpdate> adam_updates() {
  const AdamUpdate plain{.step_size = 1e-2, .correction = 0.37};
  AdamUpdate decayed = plain;
  decayed.weight_decay = 1e-2;
  AdamUpdate kept = plain;
  kept.keep = 0.999;
  return {plain, decayed, kept};
}

template <class S>
class UpdateOf : public ::testing::Test {};
using Types = ::testing::Types<float, double, Half, BFloat16>;
TYPED_TEST_SUITE(UpdateOf, Types);

TYPED_TEST(UpdateOf, EqualsTheReferenceOnEveryTarget) {
  const auto targets = runnable_targets();
  ASSERT_FALSE(targets.empty());
  const auto compare = [&](const auto& update, std::size_t count, std::int64_t target) {
    Case<TypeParam> ours(count, 1), theirs(count, 1);
    theirs.refer(fuses(target), update);
    use_targets(target);
    kernel::update(ours.elements(0, count), update);
    use_targets(0);
    expect_same(ours, theirs, std::string(hwy::TargetName(target)) + ", " + std::to_string(count));
  };
  for (const std::int64_t target : targets)
    for (const std::size_t count : {0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 1003}) {
      for (const auto& update : sgd_updates()) compare(update, count, target);
      for (const auto& update : adam_updates()) compare(update, count, target);
    }
}

// Cut anywhere, aligned or not: the same bits.
TYPED_TEST(UpdateOf, DoesNotDependOnTheCut) {
  const auto compare = [&](const auto& update, unsigned seed) {
    const std::size_t count = 1500 + seed;
    Case<TypeParam> whole(count, seed), cut(count, seed);
    kernel::update(whole.elements(0, count), update);
    std::mt19937 random(seed);
    const Elements all = cut.elements(0, count);
    for (std::size_t begin = 0; begin < count;) {
      const std::size_t length = std::min<std::size_t>(1 + random() % 90, count - begin);
      kernel::update(all.part(begin, length), update);
      begin += length;
    }
    expect_same(whole, cut, "cut " + std::to_string(seed));
  };
  for (unsigned seed = 0; seed < 10; ++seed) {
    for (const auto& update : sgd_updates()) compare(update, seed);
    for (const auto& update : adam_updates()) compare(update, seed);
  }
}

// 16-bit parameters and gradients, f32 masters and state; gradients 1024 times too large.
template <class S>
struct MasterCase {
  Case<S> narrow;
  Case<float> wide;  // p: the masters
  static constexpr double kFactor = 1.0 / 1024;

  MasterCase(std::size_t count, unsigned seed) : narrow(count, seed), wide(count, seed + 1) {
    for (std::size_t i = 0; i < count; ++i) narrow.p[i] = Storage<S>::write(wide.p[i]);
  }
  Elements elements() {
    return {.dtype = kDTypeOf<S>,
            .parameter = narrow.p.data(),
            .gradient = narrow.g.data(),
            .first = wide.first.data(),
            .second = wide.second.data(),
            .count = narrow.p.size(),
            .master = wide.p.data(),
            .gradient_factor = kFactor};
  }
  template <class Update>
  void refer(bool fused, const Update& update) {
    for (std::size_t i = 0; i < narrow.p.size(); ++i) {
      const float g = Storage<S>::read(narrow.g[i]) * static_cast<float>(kFactor);
      reference<float>(fused, update, wide.p[i], g, wide.first[i], wide.second[i]);
      narrow.p[i] = Storage<S>::write(wide.p[i]);
    }
  }
};

template <class S>
void expect_masters_equal_the_reference() {
  const auto compare = [&](const auto& update, std::size_t count, std::int64_t target, bool cut) {
    MasterCase<S> ours(count, 1), theirs(count, 1);
    theirs.refer(fuses(target), update);
    use_targets(target);
    const std::size_t middle = cut ? count / 3 : 0;
    kernel::update(ours.elements().part(0, middle), update);
    kernel::update(ours.elements().part(middle, count - middle), update);
    use_targets(0);
    const std::string what = std::string(hwy::TargetName(target)) + ", " + std::to_string(count);
    expect_same(ours.narrow, theirs.narrow, what + ", 16 bits");
    expect_same(ours.wide, theirs.wide, what + ", masters");
  };
  for (const std::int64_t target : runnable_targets())
    for (const std::size_t count : {0, 1, 3, 8, 17, 33, 64, 100, 1003})
      for (const bool cut : {false, true}) {
        for (const auto& update : sgd_updates()) compare(update, count, target, cut);
        for (const auto& update : adam_updates()) compare(update, count, target, cut);
      }
}

TEST(UpdateOfMasters, EqualsTheReferenceOnEveryTarget) {
  expect_masters_equal_the_reference<Half>();
  expect_masters_equal_the_reference<BFloat16>();
}

TEST(UpdateOfMasters, AreOfNarrowParametersAlone) {
  float x = 0;
  const Elements wide{.parameter = &x, .gradient = &x, .count = 1, .master = &x};
  EXPECT_THROW(kernel::update(wide, SgdUpdate{}), UsageError);
}

TEST(Update, LeavesTheNeighboursAlone) {
  for (const std::size_t count : {1, 13, 40}) {
    Case<float> all(60, 3);
    const Case<float> before(60, 3);
    kernel::update(all.elements(10, count), adam_updates()[2]);
    for (std::size_t i = 0; i < 60; ++i) {
      const bool inside = i >= 10 && i < 10 + count;
      EXPECT_EQ(all.p[i] != before.p[i], inside) << i;
      EXPECT_EQ(all.first[i] != before.first[i], inside) << i;
    }
  }
}

TEST(Update, RefusesIntegers) {
  std::int32_t x = 0;
  EXPECT_THROW(kernel::update({DType::i32, &x, &x, &x, &x, 1}, AdamUpdate{}), UsageError);
  EXPECT_THROW(kernel::update({DType::i32, &x, &x, &x, &x, 1}, SgdUpdate{}), UsageError);
}

}  // namespace
}  // namespace lockstep
