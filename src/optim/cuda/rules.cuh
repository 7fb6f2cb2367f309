// The update rules of update.h for one element. Every operation is written as the one rounding that
// rules-inl.h gives it on the processor (MulAdd is one, as where that has fused multiply-add), so that the
// compiler may neither fuse nor split any: the bits are the processor's, whatever the cut.
#pragma once

#include <cuda_runtime.h>

#include "optim/update.h"

namespace lockstep::kernel::cuda {

template <class T>
struct Math;

template <>
struct Math<float> {
  static __device__ float add(float a, float b) { return __fadd_rn(a, b); }
  static __device__ float mul(float a, float b) { return __fmul_rn(a, b); }
  static __device__ float mul_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
  static __device__ float div(float a, float b) { return __fdiv_rn(a, b); }
  static __device__ float sqrt(float a) { return __fsqrt_rn(a); }
};

template <>
struct Math<double> {
  static __device__ double add(double a, double b) { return __dadd_rn(a, b); }
  static __device__ double mul(double a, double b) { return __dmul_rn(a, b); }
  static __device__ double mul_add(double a, double b, double c) { return __fma_rn(a, b, c); }
  static __device__ double div(double a, double b) { return __ddiv_rn(a, b); }
  static __device__ double sqrt(double a) { return __dsqrt_rn(a); }
};

// A rule has the arithmetic's type T, kStates, the number of state arrays, reads_first(), whether what is in
// the first one is of use, and apply(p, g, first, second), the new parameter; the states change in place.
// What all elements of a launch have in common is decided by a branch, which costs nothing beside the memory:
// few kernels are compiled.
template <class T_, int kStates_>
struct SgdRule {
  using T = T_;
  static constexpr int kStates = kStates_;

  explicit SgdRule(const SgdUpdate& sgd)
      : minus_lr(static_cast<T>(-1 * sgd.lr)),
        momentum(static_cast<T>(sgd.momentum)),
        gain(static_cast<T>(sgd.gain)),
        weight_decay(static_cast<T>(sgd.weight_decay)),
        decays(sgd.weight_decay != 0),
        start(sgd.kind == Momentum::start || sgd.kind == Momentum::start_nesterov),
        nesterov(sgd.kind == Momentum::start_nesterov || sgd.kind == Momentum::keep_nesterov) {}

  __device__ bool reads_first() const { return !start; }

  __device__ T apply(T p, T g, T& first, T&) const {
    using M = Math<T>;
    if (decays) g = M::mul_add(p, weight_decay, g);
    if constexpr (kStates == 1) {
      first = start ? g : M::mul_add(g, gain, M::mul(first, momentum));
      g = nesterov ? M::mul_add(first, momentum, g) : first;
    }
    return M::mul_add(g, minus_lr, p);
  }

  T minus_lr, momentum, gain, weight_decay;
  bool decays, start, nesterov;
};

template <class T_>
struct AdamRule {
  using T = T_;
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
        keep(static_cast<T>(adam.keep)),
        decays_gradient(adam.weight_decay != 0),
        decays_parameter(adam.weight_decay == 0 && adam.keep != 1) {}

  __device__ bool reads_first() const { return true; }

  __device__ T apply(T p, T g, T& first, T& second) const {
    using M = Math<T>;
    if (decays_gradient) g = M::mul_add(p, weight_decay, g);
    if (decays_parameter) p = M::mul(p, keep);
    first = M::mul_add(g, rest1, M::mul(first, beta1));
    second = M::mul_add(M::mul(g, rest2), g, M::mul(second, beta2));
    const T scale = M::add(M::div(M::sqrt(second), correction), eps);
    return M::add(p, M::div(M::mul(first, minus_step), scale));
  }

  T beta1, rest1, beta2, rest2, eps, minus_step, correction, weight_decay, keep;
  bool decays_gradient, decays_parameter;
};

}  // namespace lockstep::kernel::cuda
