// What one rank lends to its peers in calls of the engine ipc: its events, the blocks of its buffers, and one
// block a GPU through which private memory goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "comm/cuda/ipc_memory.h"
#include "comm/cuda/ipc_post.h"
#include "comm/cuda/shared_event.h"
#include "lockstep/comm/device.h"
#include "lockstep/comm/memory.h"

namespace lockstep::cuda {

class IpcLender {
 public:
  // A post of this rank on `device`, without buffers.
  IpcPost new_post(Device device, double divisor);
  // Where `data` lies for the others; no block where it is private memory.
  IpcPlace place_of(const void* data, std::size_t stride);
  // Room of the engine's. What was there before, for another call, is over on that call's stream.
  IpcPlace staging_of(Device device, std::size_t bytes, std::size_t stride);
  const void* staging(Device device) { return gpus_[device.index].staging.data(); }

  // Behind what the stream holds.
  void record_ready(const DeviceStream& stream);
  void record_done(const DeviceStream& stream);

  // Says which blocks are over. All ranks hear of it as they meet first, and have let go as they meet again.
  void retire(IpcPost& post) const;
  void drop_retired(const IpcPost& mine);

 private:
  struct OnGpu {
    std::shared_ptr<const SharedEvent> ready;
    std::shared_ptr<const SharedEvent> done;
    CommMemory staging;
  };
  OnGpu& gpu(int index);

  std::map<int, OnGpu> gpus_;                                // by index
  std::map<std::uint64_t, std::shared_ptr<IpcBlock>> lent_;  // that peers may map
};

}  // namespace lockstep::cuda
