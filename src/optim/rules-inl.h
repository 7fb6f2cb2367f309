// The update rules of update.h on vectors. Included once per instruction set.
//
// A rule has kStates, the number of state arrays it reads and writes, and
//   apply(d, p, g, first, second)   the new parameters; the states are changed in place
// Its constants are rounded to the arithmetic's type before anything else, as libtorch does with numbers.
#if defined(LOCKSTEP_OPTIM_RULES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_OPTIM_RULES_INL_H_
#undef LOCKSTEP_OPTIM_RULES_INL_H_
#else
#define LOCKSTEP_OPTIM_RULES_INL_H_
#endif

#include "hwy/highway.h"
#include "optim/update.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Where weight decay enters. "None" is not "by zero": adding 0 * p would turn -0 into +0.
enum class Decay { none, gradient, parameter };

template <class T, Momentum Kind, Decay Where>
struct SgdRule {
  static constexpr int kStates = Kind == Momentum::none ? 0 : 1;
  static constexpr bool kStart = Kind == Momentum::start || Kind == Momentum::start_nesterov;
  static constexpr bool kNesterov = Kind == Momentum::start_nesterov || Kind == Momentum::keep_nesterov;

  explicit SgdRule(const SgdUpdate& sgd)
      : minus_lr(static_cast<T>(-1 * sgd.lr)),
        momentum(static_cast<T>(sgd.momentum)),
        gain(static_cast<T>(sgd.gain)),
        weight_decay(static_cast<T>(sgd.weight_decay)) {}

  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V apply(D d, V p, V g, V& first, V&) const {
    if constexpr (Where == Decay::gradient) g = hn::MulAdd(p, hn::Set(d, weight_decay), g);
    if constexpr (kStates == 1) {
      if constexpr (kStart)
        first = g;
      else
        first = hn::MulAdd(g, hn::Set(d, gain), hn::Mul(first, hn::Set(d, momentum)));
      g = kNesterov ? hn::MulAdd(first, hn::Set(d, momentum), g) : first;
    }
    return hn::MulAdd(g, hn::Set(d, minus_lr), p);
  }

  T minus_lr, momentum, gain, weight_decay;
};

template <class T, Decay Where>
struct AdamRule {
  static constexpr int kStates = 2;

  explicit AdamRule(const AdamUpdate& adam)
      : beta1(static_cast<T>(adam.beta1)),
        rest1(static_cast<T>(1 - adam.beta1)),
        beta2(static_cast<T>(adam.beta2)),
        rest2(static_cast<T>(1 - adam.beta2)),
        eps(static_cast<T>(adam.eps)),
        minus_step(static_cast<T>(-adam.step_size)),
        correction(static_cast<T>(adam.correction)),
        weight_decay(static_cast<T>(adam.weight_decay)),
        keep(static_cast<T>(adam.keep)) {}

  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V apply(D d, V p, V g, V& first, V& second) const {
    if constexpr (Where == Decay::gradient) g = hn::MulAdd(p, hn::Set(d, weight_decay), g);
    if constexpr (Where == Decay::parameter) p = hn::Mul(p, hn::Set(d, keep));
    first = hn::MulAdd(g, hn::Set(d, rest1), hn::Mul(first, hn::Set(d, beta1)));
    second = hn::MulAdd(hn::Mul(g, hn::Set(d, rest2)), g, hn::Mul(second, hn::Set(d, beta2)));
    const V scale = hn::Add(hn::Div(hn::Sqrt(second), hn::Set(d, correction)), hn::Set(d, eps));
    return hn::Add(p, hn::Div(hn::Mul(first, hn::Set(d, minus_step)), scale));
  }

  T beta1, rest1, beta2, rest2, eps, minus_step, correction, weight_decay, keep;
};

}  // namespace lockstep::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
