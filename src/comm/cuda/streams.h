// The streams of this process: each thread's own, and those that were seen as somebody's current one.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

namespace lockstep::cuda {

// This thread's current stream on GPU `index` (lockstep/comm/cuda_streams.h).
cudaStream_t current_stream(int index);
// Makes one that no other thread uses the current one. When the thread ends another may get it; streams are
// never destroyed, since events, and libtorch's allocator, may still know them.
void use_own_stream(int index);

// One that no thread has as its own, from those of the same kind; given back when its work is known to be
// over.
cudaStream_t take_stream(int index);
void give_stream(int index, cudaStream_t stream);

// Every stream of GPU `index` that current_stream() or take_stream() ever gave: memory that goes back waits
// for what they hold.
std::vector<cudaStream_t> seen_streams(int index);

}  // namespace lockstep::cuda
