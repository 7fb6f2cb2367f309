// The loop under every update: loads, applies a rule, stores. Included once per instruction set.
#if defined(LOCKSTEP_OPTIM_SWEEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_OPTIM_SWEEP_INL_H_
#undef LOCKSTEP_OPTIM_SWEEP_INL_H_
#else
#define LOCKSTEP_OPTIM_SWEEP_INL_H_
#endif

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "comm/kernel/codec-inl.h"
#include "hwy/highway.h"
#include "optim/rules-inl.h"
#include "optim/update.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// T: the arithmetic's type. Codec: how parameters and gradients become vectors of it and back; Kept: the
// state, and the master weights where it is another one than Codec.
template <class T, class Codec, class Rule, class Kept = Codec>
class Sweep {
 public:
  static HWY_ATTR void run(const Elements& elements, const Rule& rule) {
    Streams at{static_cast<E*>(elements.parameter), static_cast<const E*>(elements.gradient),
               static_cast<K*>(elements.first), static_cast<K*>(elements.second),
               static_cast<K*>(elements.master)};
    const auto factor = static_cast<T>(elements.gradient_factor);
    const std::size_t step = 2 * hn::Lanes(D());
    std::size_t i = 0;
    for (; i + step <= elements.count; i += step) group(rule, factor, at, i);
    if (i < elements.count) last(rule, factor, at, i, elements.count - i);
  }

 private:
  static constexpr bool kMaster = !std::is_same_v<Codec, Kept>;
  using D = hn::ScalableTag<T>;
  using E = typename Codec::Element;
  using K = typename Kept::Element;
  struct Streams {
    E* p;
    const E* g;
    K* first;
    K* second;
    K* master;
  };

  // Vector P of the group at element i.
  template <int P>
  static HWY_INLINE void vector(const Rule& rule, T factor, const Streams& at, std::size_t i) {
    const D d;
    const typename Codec::template Tag<D> dto;
    const typename Kept::template Tag<D> dkept;
    const std::size_t to = i + P * hn::Lanes(d);
    auto first = hn::Zero(d);
    auto second = first;
    auto p = first;
    if constexpr (kMaster)
      p = Kept::template load<P>(d, at.master + i);
    else
      p = Codec::template load<P>(d, at.p + i);
    const auto g = hn::Mul(Codec::template load<P>(d, at.g + i), hn::Set(d, factor));  // exact by one
    if constexpr (Rule::kStates > 0) first = Kept::template load<P>(d, at.first + i);
    if constexpr (Rule::kStates > 1) second = Kept::template load<P>(d, at.second + i);
    p = rule.apply(d, p, g, first, second);
    hn::StoreU(Codec::encode(d, p), dto, at.p + to);
    if constexpr (kMaster) hn::StoreU(Kept::encode(d, p), dkept, at.master + to);
    if constexpr (Rule::kStates > 0) hn::StoreU(Kept::encode(d, first), dkept, at.first + to);
    if constexpr (Rule::kStates > 1) hn::StoreU(Kept::encode(d, second), dkept, at.second + to);
  }

  static HWY_INLINE void group(const Rule& rule, T factor, const Streams& at, std::size_t i) {
    vector<0>(rule, factor, at, i);
    vector<1>(rule, factor, at, i);
  }

  // Less than a group, through padded copies: the same instructions, so the same bits.
  static HWY_NOINLINE HWY_ATTR void last(const Rule& rule, T factor, const Streams& at, std::size_t i,
                                         std::size_t left) {
    constexpr std::size_t step = 2 * hn::MaxLanes(D());
    HWY_ALIGN E padded[2][step] = {};
    HWY_ALIGN K kept[3][step] = {};
    const std::size_t bytes = left * sizeof(E), kept_bytes = left * sizeof(K);
    std::memcpy(padded[0], at.p + i, bytes);
    std::memcpy(padded[1], at.g + i, bytes);
    if constexpr (Rule::kStates > 0) std::memcpy(kept[0], at.first + i, kept_bytes);
    if constexpr (Rule::kStates > 1) std::memcpy(kept[1], at.second + i, kept_bytes);
    if constexpr (kMaster) std::memcpy(kept[2], at.master + i, kept_bytes);
    group(rule, factor, {padded[0], padded[1], kept[0], kept[1], kept[2]}, 0);
    std::memcpy(at.p + i, padded[0], bytes);
    if constexpr (Rule::kStates > 0) std::memcpy(at.first + i, kept[0], kept_bytes);
    if constexpr (Rule::kStates > 1) std::memcpy(at.second + i, kept[1], kept_bytes);
    if constexpr (kMaster) std::memcpy(at.master + i, kept[2], kept_bytes);
  }
};

}  // namespace lockstep::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
