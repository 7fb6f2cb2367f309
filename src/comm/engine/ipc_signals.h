// How the ranks of a group tell each other's streams, round by round of the engine ipc, that buffers are
// ready and that work on them is done: by counters (comm/cuda/ipc_counters.h) where the carrier's ranks share
// memory and the GPUs have stream memory operations, else by interprocess events. All ranks the same way, on
// which they agree with their first call.
//
// Nothing waits for what nobody has put on a stream yet: streams may share a queue to the GPU, and in two
// groups' calls each rank would be behind the other's wait.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/call/engine.h"
#include "comm/cuda/ipc_counters.h"
#include "comm/cuda/ipc_lender.h"
#include "comm/cuda/ipc_peers.h"

namespace lockstep {

class IpcSignals {
 public:
  explicit IpcSignals(std::shared_ptr<Engine> carrier) : carrier_(std::move(carrier)) {}

  // A collective's next round, with what this rank lends and has of its peers.
  struct Round {
    const Call& call;
    cuda::IpcLender& lender;
    cuda::IpcPeers& peers;
  };
  // The first of all is a collective; each may wait until the one kRounds before it is over.
  void begin(const Round& round);
  void ready(const Round& round, const DeviceStream& stream);
  void done(const Round& round, const DeviceStream& stream);
  // `stream` waits for everybody's. `own`: where this rank said it.
  void wait_ready(const Round& round, const std::vector<cuda::IpcPost>& posts, const DeviceStream& stream,
                  const DeviceStream& own);
  void wait_done(const Round& round, const std::vector<cuda::IpcPost>& posts, const DeviceStream& stream,
                 const DeviceStream& own);
  // That round is over there.
  void end(const DeviceEvent& at);

  // The group has failed: no stream of this process waits any more for what a dead rank was to say, so that
  // all that was put on them ends, without a meaning. To be called again while somebody waits. From any
  // thread.
  void release_dead() noexcept;
  // It has let go of somebody.
  bool released() const { return released_.load(std::memory_order_acquire); }

 private:
  using Step = cuda::IpcCounters::Step;
  void agree(const Call& call);
  void wait(Step step, const Round& round, const std::vector<cuda::IpcPost>& posts,
            const DeviceStream& stream, const DeviceStream& own);

  const std::shared_ptr<Engine> carrier_;
  bool agreed_ = false;
  std::mutex mutex_;                             // of the pointer: release_dead() is for any thread
  std::shared_ptr<cuda::IpcCounters> counters_;  // null: by events
  std::uint64_t round_ = 0;
  std::array<DeviceEvent, cuda::IpcCounters::kRounds> ends_;  // of the last rounds
  std::atomic<bool> released_ = false;
};

}  // namespace lockstep
