// What the instruction-set specific files offer to reduce.cc: small kernels that keep a whole tree of
// up to kMaxFan inputs in registers. Larger trees are put together from them.
#pragma once

#include <cstddef>

#include "lockstep/base/dtype.h"

namespace lockstep::kernel {

inline constexpr std::size_t kMaxFan = 8;  // a power of two, so that full trees are aligned subtrees

// One run of a kernel: out[k][out_begin + i] = f(in[0][in_begin + i], in[1][in_begin + i], …) for
// i < count and every k. Outs may be the same memory as ins, exactly.
struct Job {
  void* const* outs;
  std::size_t out_count;  // at least 1
  std::size_t out_begin;  // elements
  const void* const* ins;
  std::size_t in_begin;  // elements
  std::size_t count;
  double number;  // for avg of floats: the factor or the divisor, as Finishing says
};
using Kernel = void (*)(const Job& job);

// What happens to a float sum, once it is an element; the result is rounded to one.
enum class Finishing {
  none,
  scale,  // x * number, where the divisor is a power of two: exact, and faster than dividing
  divide  // x / number
};

// The kernels of one storage type and one operation on one instruction set.
struct Kernels {
  std::size_t fan;           // trees of 1 … fan inputs exist; 2, 4 or 8
  Kernel tree[kMaxFan];      // [n-1]: tree of n inputs
  Kernel finished[kMaxFan];  // [n-1]: the same with finish; null where there is none
  Kernel finish;             // alone
};

// Of a 16-bit type.
struct Conversions {
  Kernel widen;   // to f32
  Kernel narrow;  // from f32
};

// Each covers the types it is named after. The operation is one that the type supports.
const Kernels& float_kernels(DType dtype, ReduceOp op, Finishing finishing);  // f32, f64
const Kernels& half_kernels(DType dtype, ReduceOp op, Finishing finishing);   // f16, bf16
const Kernels& integer_kernels(DType dtype, ReduceOp op, double divisor);     // i8, u8, i32, i64
const Conversions& half_conversions(DType dtype);                             // f16, bf16

}  // namespace lockstep::kernel
