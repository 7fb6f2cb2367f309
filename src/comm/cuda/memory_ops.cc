#include "comm/cuda/memory_ops.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "comm/cuda/check.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kDriverVersion = 12000;  // whose form of these functions it is

// By the runtime, so that nothing links the driver. Null: it has none of that name.
void* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t result =
      cudaGetDriverEntryPointByVersion(name, &function, kDriverVersion, cudaEnableDefault, &found);
#else
  static_assert(kDriverVersion <= CUDART_VERSION);
  const cudaError_t result = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
  if (result != cudaSuccess) (void)cudaGetLastError();
  return result == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : nullptr;
}

struct Driver {
  decltype(&::cuDeviceGet) device = nullptr;
  decltype(&::cuDeviceGetAttribute) attribute = nullptr;
  decltype(&::cuGetErrorName) error_name = nullptr;
  decltype(&::cuStreamWriteValue64) write = nullptr;
  decltype(&::cuStreamBatchMemOp) batch = nullptr;

  static const Driver& get() {
    static const Driver driver = [] {
      Driver d;
      d.device = reinterpret_cast<decltype(d.device)>(driver_function("cuDeviceGet"));
      d.attribute = reinterpret_cast<decltype(d.attribute)>(driver_function("cuDeviceGetAttribute"));
      d.error_name = reinterpret_cast<decltype(d.error_name)>(driver_function("cuGetErrorName"));
      d.write = reinterpret_cast<decltype(d.write)>(driver_function("cuStreamWriteValue64"));
      d.batch = reinterpret_cast<decltype(d.batch)>(driver_function("cuStreamBatchMemOp"));
      return d;
    }();
    return driver;
  }
  bool complete() const {
    return device != nullptr && attribute != nullptr && error_name != nullptr && write != nullptr &&
           batch != nullptr;
  }
  void check(CUresult result, const char* call, int index) const {
    if (result == CUDA_SUCCESS) return;
    const char* name = nullptr;
    if (error_name(result, &name) != CUDA_SUCCESS || name == nullptr) name = "an unknown error";
    throw DeviceError(std::string(call) + " on cuda:" + std::to_string(index) + ": " + name);
  }
};

CUstream stream_of(const DeviceStream& stream) { return static_cast<CUstream>(stream.handle); }

}  // namespace

std::string no_memory_ops() {
  const Driver& driver = Driver::get();
  if (!driver.complete()) return "the driver has no stream memory operations";
  const int gpus = device_count();
  for (int index = 0; index < gpus; ++index) {
    CUdevice gpu = 0;
    int can = 0;
    if (driver.device(&gpu, index) != CUDA_SUCCESS ||
        driver.attribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, gpu) != CUDA_SUCCESS ||
        can == 0)
      return "cuda:" + std::to_string(index) + " has no stream memory operations of 64 bits";
  }
  return "";
}

void write_number(const DeviceStream& stream, std::uintptr_t address, std::uint64_t value) {
  const int index = stream.device.index;
  const OnDevice on(index);
  const Driver& driver = Driver::get();
  driver.check(driver.write(stream_of(stream), address, value, CU_STREAM_WRITE_VALUE_DEFAULT),
               "cuStreamWriteValue64", index);
}

void wait_for_numbers(const DeviceStream& stream, std::span<const NumberWait> waits) {
  if (waits.empty()) return;
  const int index = stream.device.index;
  const OnDevice on(index);
  std::vector<CUstreamBatchMemOpParams> operations(waits.size());
  for (std::size_t i = 0; i < waits.size(); ++i) {
    auto& wait = operations[i].waitValue;
    wait.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    wait.address = waits[i].address;
    wait.value64 = waits[i].least;
    wait.flags = CU_STREAM_WAIT_VALUE_GEQ;
  }
  const Driver& driver = Driver::get();
  driver.check(
      driver.batch(stream_of(stream), static_cast<unsigned>(operations.size()), operations.data(), 0),
      "cuStreamBatchMemOp", index);
}

}  // namespace lockstep::cuda
