// Where a launch goes, and what becomes of its error.
#pragma once

#include <cuda_runtime_api.h>

#include "comm/cuda/check.h"
#include "lockstep/comm/device.h"

namespace lockstep::kernel::cuda {

// While it lives, the device is the thread's current one, and `stream()` its current stream there.
class Place {
 public:
  explicit Place(Device device)
      : index_(device.index),
        on_(device.index),
        stream_(static_cast<cudaStream_t>(runtime_of(device).current_stream(device.index).handle)) {}

  cudaStream_t stream() const { return stream_; }
  // After a launch.
  void check_launch(const char* what) const { lockstep::cuda::check(cudaGetLastError(), what, index_); }

 private:
  int index_;
  lockstep::cuda::OnDevice on_;
  cudaStream_t stream_;
};

}  // namespace lockstep::kernel::cuda
