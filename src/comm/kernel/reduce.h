// The arithmetic under every collective: SIMD by run-time dispatch (Highway), one definition of each
// result. tests/comm/kernel_test.cc holds the plain reference that every target must match bit for bit.
//
// Storage type: what the caller's buffers hold. Accumulator type: accumulator_of(storage), which is f32
// for f16 and bf16 and the storage type otherwise.
//
// Scalar meaning of combine(a, b), a from the lower ranks:
//   sum, avg  a + b (integers wrap)       product  a * b (integers wrap)
//   min       isnan(a) || a < b ? a : b   max      isnan(a) || a > b ? a : b
//   bit_and   a & b                       bit_or   a | b          (integers only)
// finish(x): avg gives x / divisor (integers truncate towards zero), anything else x; then rounding to
// the storage type, nearest even.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/base/dtype.h"

namespace lockstep::kernel {

struct Reduction {
  DType dtype = DType::f32;  // storage
  ReduceOp op = ReduceOp::sum;
  double divisor = 1;  // for avg: usually the number of contributions
};

// Writes finish(tree(ins[0][i], …, ins[n-1][i])) to every outs[k][i], 0 <= i < count, in storage type,
// where tree is the canonical balanced tree: tree(x_0 … x_{n-1}) = combine(tree(first p), tree(rest)),
// p the largest power of two below n. An out may be the same memory as an in (exactly, not shifted).
// n >= 1; n == 1 copies (and finishes). 16-bit floats accumulate in f32 and are rounded once.
void reduce_tree(std::span<void* const> outs, std::span<const void* const> ins, std::size_t count,
                 const Reduction& reduction);

// The same without finish: writes the accumulator type to `out`, which overlaps no input unless the two
// types are the same.
void reduce_tree_raw(void* out, std::span<const void* const> ins, std::size_t count,
                     const Reduction& reduction);

// out[i] = combine(a[i], b[i]), all in accumulator type. out may be a or b.
void combine(void* out, const void* a, const void* b, std::size_t count, const Reduction& reduction);

// Can avg of this type divide by that? Positive and finite; whole and below 2^31 for integers.
bool accepts_divisor(DType dtype, double divisor);

// Storage to accumulator type. A plain copy when they are the same; no overlap unless they are.
void widen(void* out, const void* in, std::size_t count, DType storage);

// Accumulator to storage type with finish. In place when the types are the same.
void finish(void* out, const void* in, std::size_t count, const Reduction& reduction);

// The instruction set in use: "AVX3", "AVX2", "SSE4", …
const char* target_name();

}  // namespace lockstep::kernel
