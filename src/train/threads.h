// How many threads a worker computes with: a part of the run, since sums are cut by it.
#pragma once

#include <cstdint>

namespace lockstep {

// The calling thread's libtorch computes with exactly so many, whatever OMP_NUM_THREADS and OMP_DYNAMIC say.
// Throws UsageError when the environment allows fewer, std::bad_alloc when there is no memory for what the library
// of matrix products needs a thread.
void pin_threads(std::int64_t threads);

}  // namespace lockstep
