// f32 and f64, for every instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/kernel/float_kernels.cc"
// clang-format off: foreach_target.h must come before highway.h
#include "hwy/foreach_target.h"
// clang-format on
#include "comm/kernel/tree-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernel::HWY_NAMESPACE {

const Kernels& find_float(DType dtype, ReduceOp op, Finishing finishing) {
  return dtype == DType::f32 ? choose_float<float, Plain<float>>(op, finishing)
                             : choose_float<double, Plain<double>>(op, finishing);
}

const char* find_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace lockstep::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "comm/kernel/reduce.h"

namespace lockstep::kernel {

HWY_EXPORT(find_float);
HWY_EXPORT(find_name);

const Kernels& float_kernels(DType dtype, ReduceOp op, Finishing finishing) {
  return HWY_DYNAMIC_DISPATCH(find_float)(dtype, op, finishing);
}

const char* target_name() { return HWY_DYNAMIC_DISPATCH(find_name)(); }

}  // namespace lockstep::kernel
#endif
