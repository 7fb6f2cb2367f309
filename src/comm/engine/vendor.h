// What the engines of other vendors (MPI, Gloo) share: they have no comm memory of their own, and know no
// averages.
#pragma once

#include <array>
#include <cstring>

#include "comm/call/call.h"
#include "comm/kernel/reduce.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/memory.h"

namespace lockstep {

// Zero-filled private memory, aligned for any SIMD.
inline CommMemory private_memory(std::size_t bytes) { return {runtime_of({}).allocate(bytes, 0), bytes}; }

// Does this rank receive a reduced result, and how many elements?
inline bool gets_reduction(const Call& call, int rank) {
  return call.what == Collective::all_reduce || call.what == Collective::reduce_scatter ||
         (call.what == Collective::reduce && call.root == rank);
}

// Vendors know no avg: they sum, and this divides. Not 16-bit floats, whose sums vendors don't have, or
// round in an order of their own.
inline void finish_average(const Call& call, int rank, int size) {
  if (call.op != ReduceOp::avg || call.count == 0 || !gets_reduction(call, rank)) return;
  kernel::finish(call.out, call.out, call.count,
                 {.dtype = call.dtype, .op = call.op, .divisor = call.divisor_among(size)});
}

// The whole of a call in a group of one: the input becomes the output, and an average is divided.
inline void run_alone(const Call& call) {
  if (call.what == Collective::send || call.what == Collective::recv)
    throw UsageError(call.describe() + " in a group of one: there is no peer");
  if (call.count == 0 || call.in == nullptr || call.out == nullptr) return;
  if (reduces(call.what))
    kernel::reduce_tree(std::array<void*, 1>{call.out}, std::array<const void*, 1>{call.in}, call.count,
                        {.dtype = call.dtype, .op = call.op, .divisor = call.divisor_among(1)});
  else if (call.in != call.out)
    std::memcpy(call.out, call.in, call.bytes());
}

}  // namespace lockstep
