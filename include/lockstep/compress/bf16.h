// Gradients as bf16 on the wire: half the bytes.
//
//   DataParallel ddp(model, world, {.exchange = bf16_exchange});
//
// A bucket of f32 is rounded to bf16, travels as that, and is widened again when it is there; sums are taken
// in f32 and rounded once more. So a mean is off by about one part in 256, and its bits depend on the number
// of workers, each of whom rounds. Buckets of other types, and a worker alone, are left as they are.
#pragma once

#include "lockstep/grad/exchange.h"

namespace lockstep {

Exchange bf16_exchange(Exchange::Leaves leaves = Exchange::Leaves::everything);

}  // namespace lockstep
