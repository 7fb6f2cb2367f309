// Gradients as bf16 on the wire: half the bytes where each worker has a machine, or no shared memory, of its
// own. Between machines of several workers it is three quarters: the sum of a machine travels as f32, since a
// sum is rounded once. Workers that share a machine move about as many through its memory as before.
//
//   DataParallel ddp(model, world, {.exchange = bf16_exchange});
//
// A bucket of f32 is rounded to bf16, travels as that, and is widened again when it is there; sums are taken
// in f32 and rounded once more. Each rounding is off by at most one part in 256 of what it rounds, so a mean
// by that of the largest gradient in it: more of itself where gradients cancel out. Its bits depend on the
// number of workers, each of whom rounds. Buckets of other types, and a worker alone, are left as they are.
#pragma once

#include "lockstep/grad/exchange.h"

namespace lockstep {

Exchange bf16_exchange(Exchange::Leaves leaves = Exchange::Leaves::everything);

}  // namespace lockstep
