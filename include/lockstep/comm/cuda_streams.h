// Whose streams are the current ones of a thread, on GPUs: for libraries that keep a current stream of their
// own, as libtorch does. What is put on it by the library and by collectives is then in one order. In
// programs that are built with CUDA.
//
// Without a source each thread has a stream of its own, which waits for no other (not for CUDA's default
// stream either): runtime_of(device).current_stream(index) says which.
#pragma once

namespace lockstep {

// `stream` is a cudaStream_t of GPU `index`.
struct CudaStreamSource {
  void* (*current)(int index) = nullptr;
  void (*use)(int index, void* stream) = nullptr;  // from now on this thread's
};

// Before the first group, once; UsageError for a second one.
void set_cuda_streams(CudaStreamSource source);

}  // namespace lockstep
