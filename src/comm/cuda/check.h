// What CUDA answers, as our errors: one line that names the call and the device.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::cuda {

// What a GPU, or CUDA for it, refused or failed with; who knows the rank and the call adds them.
class DeviceError : public SystemError {
 public:
  explicit DeviceError(const std::string& message) : SystemError(message) {}
};

// Throws where `result` is no success. `call`: "cudaMemcpyAsync of 4096 bytes". The error is taken out of
// CUDA's memory of the last one, so that nobody else's check trips over it; one that the device can't
// recover from comes again.
void check(cudaError_t result, const char* call, int device);
inline void check(cudaError_t result, const std::string& call, int device) {
  if (result != cudaSuccess) check(result, call.c_str(), device);
}

// How many GPUs this process sees: 0 where there is none, or no driver. `why`: gets the reason for none.
int device_count(std::string* why = nullptr);

// Makes `index` this thread's current device for the scope.
class OnDevice {
 public:
  explicit OnDevice(int index);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  int index_ = 0;
};

}  // namespace lockstep::cuda
