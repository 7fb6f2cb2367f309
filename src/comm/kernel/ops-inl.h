// The operations of reduce.h on vectors, a from the lower ranks. Included once per instruction set.
// kRounds: may the result be no element, so that it has to be rounded to one?
#if defined(LOCKSTEP_KERNEL_OPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNEL_OPS_INL_H_
#undef LOCKSTEP_KERNEL_OPS_INL_H_
#else
#define LOCKSTEP_KERNEL_OPS_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct Sum {
  static constexpr bool kRounds = true;
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Add(a, b);
  }
};

struct Product {
  static constexpr bool kRounds = true;
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Mul(a, b);
  }
};

// Highway leaves NaN and -0.0 in Min and Max to the processor; here each has one meaning.
struct Minimum {
  static constexpr bool kRounds = false;
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>())
      return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::Lt(a, b)), a, b);
    else
      return hn::Min(a, b);
  }
};

struct Maximum {
  static constexpr bool kRounds = false;
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>())
      return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::Gt(a, b)), a, b);
    else
      return hn::Max(a, b);
  }
};

struct BitAnd {
  static constexpr bool kRounds = false;
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::And(a, b);
  }
};

struct BitOr {
  static constexpr bool kRounds = false;
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Or(a, b);
  }
};

// What happens to the tree's result (Finishing).
struct AsIs {
  template <class V>
  static HWY_INLINE V apply(V v, V) {
    return v;
  }
};

struct Scale {
  template <class V>
  static HWY_INLINE V apply(V v, V factor) {
    return hn::Mul(v, factor);
  }
};

struct Divide {
  template <class V>
  static HWY_INLINE V apply(V v, V divisor) {
    return hn::Div(v, divisor);
  }
};

}  // namespace lockstep::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
