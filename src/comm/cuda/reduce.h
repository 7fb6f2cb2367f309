// The arithmetic of comm/kernel/reduce.h on a GPU: one kernel a call, the same bits as the processor's for
// every type, operation, divisor and number of inputs (a NaN is a NaN; which one is not said).
//
// Bytes: each input is read once, each out written once. Accesses are of 16 bytes where all pointers are
// aligned to that.
#pragma once

#include <cstddef>
#include <span>

#include "comm/kernel/reduce.h"
#include "lockstep/comm/device.h"

namespace lockstep::cuda {

inline constexpr std::size_t kMostInputs = 64;

// finish(tree(ins[0][i], …)) to every outs[k][i], put on `stream`. Outs and ins are memory that the stream's
// GPU reaches; an out may be an in, exactly. At most kMostInputs of each.
void reduce_tree(std::span<void* const> outs, std::span<const void* const> ins, std::size_t count,
                 const kernel::Reduction& reduction, const DeviceStream& stream);

// f16 or bf16 to f32, and f32 to f16 or bf16, nearest even.
void widen(void* out, const void* in, std::size_t count, DType from, const DeviceStream& stream);
void narrow(void* out, const void* in, std::size_t count, DType to, const DeviceStream& stream);

}  // namespace lockstep::cuda
