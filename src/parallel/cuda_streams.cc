// libtorch's current streams are ours on GPUs: what it is given and what collectives are given is in one
// order. Linking the library asks for the symbol below, as with engines (comm/engine/mpi_register.cc).
#include "lockstep/comm/cuda_streams.h"

#include <c10/cuda/CUDAStream.h>

namespace {

void* torch_stream(int index) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(index)).stream();
}

// As one that was made elsewhere, and is never destroyed: libtorch's allocator may remember it.
void use_in_torch(int index, void* stream) {
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream),
                                                                   static_cast<c10::DeviceIndex>(index)));
}

}  // namespace

extern "C" const bool lockstep_cuda_streams_are_linked;
const bool lockstep_cuda_streams_are_linked =
    (lockstep::set_cuda_streams({.current = torch_stream, .use = use_in_torch}), true);
