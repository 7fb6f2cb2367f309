// Events that streams of other processes wait for. They come from a pool, and are never destroyed while the
// process lives: a peer may be about to wait for one whose owner has gone on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

namespace lockstep::cuda {

struct SharedEvent {
  std::uint64_t id = 0;  // in this process
  int index = 0;         // of its GPU
  cudaEvent_t event = nullptr;
  cudaIpcEventHandle_t handle = {};
};

// Goes back to the pool with the last handle.
std::shared_ptr<const SharedEvent> shared_event(int index);

}  // namespace lockstep::cuda
