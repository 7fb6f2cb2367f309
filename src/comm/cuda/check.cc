#include "comm/cuda/check.h"

#include "lockstep/base/error.h"

namespace lockstep::cuda {

void check(cudaError_t result, const char* call, int device) {
  if (result == cudaSuccess) return;
  (void)cudaGetLastError();
  throw DeviceError(std::string(call) + " on cuda:" + std::to_string(device) + ": " +
                    cudaGetErrorString(result) + " (" + cudaGetErrorName(result) + ")");
}

int device_count(std::string* why) {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess && count > 0) return count;
  (void)cudaGetLastError();
  if (why != nullptr)
    *why = result == cudaSuccess ? "this process sees no GPU (is CUDA_VISIBLE_DEVICES empty?)"
                                 : std::string("no GPU can be used: ") + cudaGetErrorString(result);
  return 0;
}

OnDevice::OnDevice(int index) : index_(index) {
  check(cudaGetDevice(&before_), "cudaGetDevice", index);
  if (before_ != index_) check(cudaSetDevice(index_), "cudaSetDevice", index_);
}

OnDevice::~OnDevice() {
  if (before_ != index_ && cudaSetDevice(before_) != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace lockstep::cuda
