// The loop under every update: loads, applies a rule, stores. Included once per instruction set.
#if defined(LOCKSTEP_OPTIM_SWEEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_OPTIM_SWEEP_INL_H_
#undef LOCKSTEP_OPTIM_SWEEP_INL_H_
#else
#define LOCKSTEP_OPTIM_SWEEP_INL_H_
#endif

#include <cstddef>
#include <cstring>

#include "comm/kernel/codec-inl.h"
#include "hwy/highway.h"
#include "optim/rules-inl.h"
#include "optim/update.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// T: the arithmetic's type. Codec: how elements become vectors of it and back.
template <class T, class Codec, class Rule>
class Sweep {
 public:
  static HWY_ATTR void run(const Elements& elements, const Rule& rule) {
    Streams at{static_cast<E*>(elements.parameter), static_cast<const E*>(elements.gradient),
               static_cast<E*>(elements.first), static_cast<E*>(elements.second)};
    const std::size_t step = 2 * hn::Lanes(D());
    std::size_t i = 0;
    for (; i + step <= elements.count; i += step) group(rule, at, i);
    if (i < elements.count) last(rule, at, i, elements.count - i);
  }

 private:
  using D = hn::ScalableTag<T>;
  using E = typename Codec::Element;
  struct Streams {
    E* p;
    const E* g;
    E* first;
    E* second;
  };

  // Vector P of the group at element i.
  template <int P>
  static HWY_INLINE void vector(const Rule& rule, const Streams& at, std::size_t i) {
    const D d;
    const typename Codec::template Tag<D> dto;
    const std::size_t to = i + P * hn::Lanes(d);
    auto first = hn::Zero(d);
    auto second = first;
    const auto p = Codec::template load<P>(d, at.p + i);
    const auto g = Codec::template load<P>(d, at.g + i);
    if constexpr (Rule::kStates > 0) first = Codec::template load<P>(d, at.first + i);
    if constexpr (Rule::kStates > 1) second = Codec::template load<P>(d, at.second + i);
    hn::StoreU(Codec::encode(d, rule.apply(d, p, g, first, second)), dto, at.p + to);
    if constexpr (Rule::kStates > 0) hn::StoreU(Codec::encode(d, first), dto, at.first + to);
    if constexpr (Rule::kStates > 1) hn::StoreU(Codec::encode(d, second), dto, at.second + to);
  }

  static HWY_INLINE void group(const Rule& rule, const Streams& at, std::size_t i) {
    vector<0>(rule, at, i);
    vector<1>(rule, at, i);
  }

  // Less than a group, through padded copies: the same instructions, so the same bits.
  static HWY_NOINLINE HWY_ATTR void last(const Rule& rule, const Streams& at, std::size_t i,
                                         std::size_t left) {
    constexpr std::size_t step = 2 * hn::MaxLanes(D());
    HWY_ALIGN E padded[4][step] = {};
    const std::size_t bytes = left * sizeof(E);
    std::memcpy(padded[0], at.p + i, bytes);
    std::memcpy(padded[1], at.g + i, bytes);
    if constexpr (Rule::kStates > 0) std::memcpy(padded[2], at.first + i, bytes);
    if constexpr (Rule::kStates > 1) std::memcpy(padded[3], at.second + i, bytes);
    group(rule, {padded[0], padded[1], padded[2], padded[3]}, 0);
    std::memcpy(at.p + i, padded[0], bytes);
    if constexpr (Rule::kStates > 0) std::memcpy(at.first + i, padded[2], bytes);
    if constexpr (Rule::kStates > 1) std::memcpy(at.second + i, padded[3], bytes);
  }
};

}  // namespace lockstep::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
