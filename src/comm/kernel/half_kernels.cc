// f16 and bf16, for every instruction set: widened to f32 in registers, rounded at every node of a tree.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/kernel/half_kernels.cc"
// clang-format off: foreach_target.h must come before highway.h
#include "hwy/foreach_target.h"
// clang-format on
#include "comm/kernel/tree-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernel::HWY_NAMESPACE {

const Kernels& find_half(DType dtype, ReduceOp op, Finishing finishing) {
  return dtype == DType::f16 ? choose_float<float, F16>(op, finishing)
                             : choose_float<float, Bf16Pairs>(op, finishing);
}

// A tree of one: no operation.
template <class Codec>
inline constexpr Conversions kConversions = {.widen = &Tree<1, float, Codec, Plain<float>, Sum, AsIs>::run,
                                             .narrow = &Tree<1, float, Plain<float>, Codec, Sum, AsIs>::run};

const Conversions& find_conversions(DType dtype) {
  return dtype == DType::f16 ? kConversions<F16> : kConversions<Bf16>;
}

}  // namespace lockstep::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernel {

HWY_EXPORT(find_half);
HWY_EXPORT(find_conversions);

const Kernels& half_kernels(DType dtype, ReduceOp op, Finishing finishing) {
  return HWY_DYNAMIC_DISPATCH(find_half)(dtype, op, finishing);
}

const Conversions& half_conversions(DType dtype) { return HWY_DYNAMIC_DISPATCH(find_conversions)(dtype); }

}  // namespace lockstep::kernel
#endif
