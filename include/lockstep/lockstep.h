// Everything a program needs, in one include.
//
// Start with parallel/data_parallel.h (a model on many workers); below it are comm/init.h (how a program
// joins its peers) and comm/group.h (what it can do with them). A program that links lockstep::comm alone,
// without libtorch, gets those two.
#pragma once

#include "lockstep/base/bytes.h"   // IWYU pragma: export
#include "lockstep/base/dtype.h"   // IWYU pragma: export
#include "lockstep/base/error.h"   // IWYU pragma: export
#include "lockstep/comm/buffer.h"  // IWYU pragma: export
#include "lockstep/comm/group.h"   // IWYU pragma: export
#include "lockstep/comm/init.h"    // IWYU pragma: export
#include "lockstep/comm/lanes.h"   // IWYU pragma: export
#include "lockstep/comm/mean.h"    // IWYU pragma: export
#include "lockstep/comm/memory.h"  // IWYU pragma: export
#include "lockstep/comm/work.h"    // IWYU pragma: export

#ifdef LOCKSTEP_WITH_TORCH                      // the target lockstep says so
#include "lockstep/checkpoint/hash.h"           // IWYU pragma: export
#include "lockstep/checkpoint/leader.h"         // IWYU pragma: export
#include "lockstep/checkpoint/safetensors.h"    // IWYU pragma: export
#include "lockstep/checkpoint/state.h"          // IWYU pragma: export
#include "lockstep/checkpoint/store.h"          // IWYU pragma: export
#include "lockstep/compress/bf16.h"             // IWYU pragma: export
#include "lockstep/compress/compress.h"         // IWYU pragma: export
#include "lockstep/data/dataset.h"              // IWYU pragma: export
#include "lockstep/data/datasets.h"             // IWYU pragma: export
#include "lockstep/data/distributed_sampler.h"  // IWYU pragma: export
#include "lockstep/data/loader.h"               // IWYU pragma: export
#include "lockstep/data/open_dataset.h"         // IWYU pragma: export
#include "lockstep/data/sampler.h"              // IWYU pragma: export
#include "lockstep/models/cross_entropy.h"      // IWYU pragma: export
#include "lockstep/models/models.h"             // IWYU pragma: export
#include "lockstep/models/precision.h"          // IWYU pragma: export
#include "lockstep/optim/clip.h"                // IWYU pragma: export
#include "lockstep/optim/grad_scaler.h"         // IWYU pragma: export
#include "lockstep/optim/layerwise.h"           // IWYU pragma: export
#include "lockstep/optim/onebit_adam.h"         // IWYU pragma: export
#include "lockstep/optim/optimizer.h"           // IWYU pragma: export
#include "lockstep/optim/schedule.h"            // IWYU pragma: export
#include "lockstep/parallel/construction.h"     // IWYU pragma: export
#include "lockstep/parallel/data_parallel.h"    // IWYU pragma: export
#include "lockstep/parallel/sharded.h"          // IWYU pragma: export
#include "lockstep/parallel/strategies.h"       // IWYU pragma: export
#include "lockstep/parallel/sync_batch_norm.h"  // IWYU pragma: export
#include "lockstep/parallel/tensor.h"           // IWYU pragma: export
#include "lockstep/parallel/units.h"            // IWYU pragma: export
#include "lockstep/train/captured_loss.h"       // IWYU pragma: export
#include "lockstep/train/infer.h"               // IWYU pragma: export
#include "lockstep/train/step_bench.h"          // IWYU pragma: export
#include "lockstep/train/trainer.h"             // IWYU pragma: export
#endif
