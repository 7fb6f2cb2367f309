// The arithmetic under every collective: SIMD by run-time dispatch (Highway), one definition of each
// result. tests/comm/kernel_test.cc holds the plain reference that every target must match bit for bit.
//
// Scalar meaning of combine(a, b), a from the lower ranks:
//   sum, avg  a + b (integers wrap)       product  a * b (integers wrap)
//   min       isnan(a) || a < b ? a : b   max      isnan(a) || a > b ? a : b
//   bit_and   a & b                       bit_or   a | b          (integers only)
// finish(x): avg gives x / divisor (integers truncate towards zero), anything else x.
//
// f16 and bf16 are computed in f32, and what comes of each combine, and of finish, is rounded to the type
// itself, nearest even. So a partial sum is an element like any other: it may be kept, sent and added
// up elsewhere, and wherever a tree is cut, its result has the same bits.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/base/dtype.h"

namespace lockstep::kernel {

struct Reduction {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  double divisor = 1;  // for avg: usually the number of contributions
};

// Writes finish(tree(ins[0][i], …, ins[n-1][i])) to every outs[k][i], 0 <= i < count,
// where tree is the canonical balanced tree: tree(x_0 … x_{n-1}) = combine(tree(first p), tree(rest)),
// p the largest power of two below n. An out may be the same memory as an in (exactly, not shifted).
// n >= 1; n == 1 copies (and finishes).
void reduce_tree(std::span<void* const> outs, std::span<const void* const> ins, std::size_t count,
                 const Reduction& reduction);

// The reduction of a subtree, which is not finished: the whole tree is, once.
Reduction partial(Reduction reduction);

// out[i] = combine(a[i], b[i]). out may be a or b.
void combine(void* out, const void* a, const void* b, std::size_t count, const Reduction& reduction);

// out[i] = finish(in[i]). In place too.
void finish(void* out, const void* in, std::size_t count, const Reduction& reduction);

// Can avg of this type divide by that? Positive and finite; whole and below 2^31 for integers.
bool accepts_divisor(DType dtype, double divisor);

// f16 or bf16 to f32.
void widen(void* out, const void* in, std::size_t count, DType from);

// f32 to f16 or bf16, nearest even.
void narrow(void* out, const void* in, std::size_t count, DType to);

// The instruction set in use: "AVX3", "AVX2", "SSE4", …
const char* target_name();

}  // namespace lockstep::kernel
