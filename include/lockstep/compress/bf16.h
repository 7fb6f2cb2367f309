// Gradients as bf16 on the wire: half the bytes. Workers that share a machine move about as many through its
// memory as before.
//
//   DataParallel ddp(model, world, {.exchange = bf16_exchange});
//
// A bucket of f32 is rounded to bf16, added up as that, each sum rounded (comm/kernel/reduce.h), and widened
// again when it is there. A rounding is off by at most one part in 256 of what it rounds, and a mean over n
// workers has log2(n) + 2 of them on its way: where gradients cancel out that is more of what is left. Its
// bits depend on the number of workers: a worker's own lanes add up in f32, and what they are together is
// rounded. Buckets of other types, and a worker alone, are left as they are.
#pragma once

#include "lockstep/grad/exchange.h"

namespace lockstep {

Exchange bf16_exchange(Exchange::Leaves leaves = Exchange::Leaves::everything);

}  // namespace lockstep
