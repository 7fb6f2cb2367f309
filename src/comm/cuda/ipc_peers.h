// Peers' memory and events in this process. A peer in another process is mapped once, whoever asks: CUDA
// opens a handle once a process; one in this process, a thread as a rank, is reached as it is.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "comm/cuda/ipc_post.h"
#include "lockstep/comm/device.h"

namespace lockstep::cuda {

// Of one engine.
class IpcPeers {
 public:
  // Where this process reaches the first byte of `place`, of the rank whose post that is, from GPU `index`.
  std::byte* reach(const IpcPost& post, const IpcPlace& place, int index);
  // `stream` waits for that rank's event.
  void wait(const IpcPost& post, const IpcEventPost& event, const DeviceStream& stream);
  // Lets go of the blocks that the rank says are over.
  void let_go(const IpcPost& post);

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // process, id in it
  void enable_peer(int index, int other);
  cudaEvent_t event(const IpcPost& post, const IpcEventPost& event, int index);

  std::map<Key, std::shared_ptr<void>> memory_;  // opened ones
  std::map<Key, std::shared_ptr<void>> events_;
  std::set<std::pair<int, int>> enabled_;  // GPUs that reach each other's memory
};

}  // namespace lockstep::cuda
