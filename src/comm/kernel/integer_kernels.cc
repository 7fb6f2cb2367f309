// i8, u8, i32 and i64, for every instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/kernel/integer_kernels.cc"
// clang-format off: foreach_target.h must come before highway.h
#include "hwy/foreach_target.h"
// clang-format on
#include "comm/kernel/plain-inl.h"
#include "comm/kernel/tree-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernel::HWY_NAMESPACE {

// Sums in vectors; the division is a pass of its own.
template <class T>
constexpr Kernels make_average() {
  Kernels kernels = kPlainKernels<T, Sum>;
  for (Kernel& kernel : kernels.finished) kernel = nullptr;
  kernels.finish = &plain_divide<T>;
  return kernels;
}

// Highway has no product of these types on every target.
template <class T>
constexpr Kernels make_plain_product() {
  Kernels kernels{};
  kernels.fan = 2;
  kernels.tree[0] = kernels.finished[0] = kernels.finish = &Tree<1, T, Plain<T>, Plain<T>, Sum, AsIs>::run;
  kernels.tree[1] = kernels.finished[1] = &plain_product<T>;
  return kernels;
}

template <class T>
inline constexpr Kernels kAverage = make_average<T>();
template <class T>
inline constexpr Kernels kPlainProduct = make_plain_product<T>();

template <class T>
const Kernels& choose_integer(ReduceOp op, double divisor) {
  switch (op) {
    case ReduceOp::sum: break;
    case ReduceOp::avg:
      if (divisor != 1) return kAverage<T>;
      break;
    case ReduceOp::min: return kPlainKernels<T, Minimum>;
    case ReduceOp::max: return kPlainKernels<T, Maximum>;
    case ReduceOp::product:
      if constexpr (sizeof(T) == 4)
        return kPlainKernels<T, Product>;
      else
        return kPlainProduct<T>;
    case ReduceOp::bit_and: return kPlainKernels<T, BitAnd>;
    case ReduceOp::bit_or: return kPlainKernels<T, BitOr>;
  }
  return kPlainKernels<T, Sum>;
}

const Kernels& find_integer(DType dtype, ReduceOp op, double divisor) {
  switch (dtype) {
    case DType::i8: return choose_integer<std::int8_t>(op, divisor);
    case DType::u8: return choose_integer<std::uint8_t>(op, divisor);
    case DType::i32: return choose_integer<std::int32_t>(op, divisor);
    default: return choose_integer<std::int64_t>(op, divisor);
  }
}

}  // namespace lockstep::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernel {

HWY_EXPORT(find_integer);

const Kernels& integer_kernels(DType dtype, ReduceOp op, double divisor) {
  return HWY_DYNAMIC_DISPATCH(find_integer)(dtype, op, divisor);
}

}  // namespace lockstep::kernel
#endif
