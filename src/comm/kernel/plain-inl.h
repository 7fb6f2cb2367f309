// Integer arithmetic that Highway has no vectors for: plain loops over small aligned copies, which the
// compiler turns into vectors of the instruction set at hand. Included once per instruction set.
#if defined(LOCKSTEP_KERNEL_PLAIN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNEL_PLAIN_INL_H_
#undef LOCKSTEP_KERNEL_PLAIN_INL_H_
#else
#define LOCKSTEP_KERNEL_PLAIN_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "comm/kernel/kernels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernel::HWY_NAMESPACE {

// Runs `Step::run(block)` over N inputs, copied block by block; block[0] is the result.
template <std::size_t N, class T, class Step>
HWY_ATTR void plain_loop(const Job& job) {
  constexpr std::size_t size = 1024 / sizeof(T);
  HWY_ALIGN T block[N][size] = {};
  for (std::size_t i = 0; i < job.count; i += size) {
    const std::size_t left = job.count - i < size ? job.count - i : size;
    for (std::size_t k = 0; k < N; ++k)
      std::memcpy(block[k], static_cast<const T*>(job.ins[k]) + job.in_begin + i, left * sizeof(T));
    Step::run(block, job.number);  // the whole block: a constant trip count
    for (std::size_t k = 0; k < job.out_count; ++k)
      std::memcpy(static_cast<T*>(job.outs[k]) + job.out_begin + i, block[0], left * sizeof(T));
  }
}

template <class T>
struct MultiplyStep {
  template <std::size_t Size>
  static HWY_ATTR void run(T (&block)[2][Size], double) {
    for (std::size_t i = 0; i < Size; ++i)  // unsigned: it wraps
      block[0][i] =
          static_cast<T>(static_cast<std::uint64_t>(block[0][i]) * static_cast<std::uint64_t>(block[1][i]));
  }
};

template <class T>
struct DivideStep {
  template <std::size_t Size>
  static HWY_ATTR void run(T (&block)[1][Size], double number) {
    if constexpr (sizeof(T) == 8) {
      const auto divisor = static_cast<std::int64_t>(number);
      for (std::size_t i = 0; i < Size; ++i) block[0][i] /= divisor;
    } else {
      // Exact for |x| < 2^32: a quotient that is no integer differs from the nearest one by at least
      // 1 / divisor, more than the rounding error of f64.
      for (std::size_t i = 0; i < Size; ++i)
        block[0][i] = static_cast<T>(static_cast<std::int32_t>(static_cast<double>(block[0][i]) / number));
    }
  }
};

template <class T>
HWY_ATTR void plain_product(const Job& job) {
  plain_loop<2, T, MultiplyStep<T>>(job);
}

template <class T>
HWY_ATTR void plain_divide(const Job& job) {
  plain_loop<1, T, DivideStep<T>>(job);
}

}  // namespace lockstep::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
