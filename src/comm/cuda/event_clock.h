// When events passed, in nanoseconds of the steady clock (now_ns()). A GPU's events know the time between two
// of them alone: so once in a while one is recorded on an idle stream, and the host's time noted beside it.
// Right to about ten microseconds where the process has the GPU for itself.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace lockstep::cuda {

class EventClock {
 public:
  // Of an event with timing that has passed; none: CUDA does not say.
  std::optional<std::int64_t> time_of(cudaEvent_t event, int index);

 private:
  struct Base {
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    std::int64_t at_ns = 0;
  };
  void renew(Base& base, int index);

  std::mutex mutex_;
  std::map<int, Base> bases_;  // by GPU
};

}  // namespace lockstep::cuda
