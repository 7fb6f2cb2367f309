#include "comm/cuda/ipc_peers.h"

#include <mutex>
#include <string>

#include "comm/cuda/check.h"
#include "comm/cuda/ipc_memory.h"
#include "lockstep/base/log.h"

namespace lockstep::cuda {
namespace {

// What this process has opened, by (process, id): counted, since several groups may use one.
template <class Close>
class Opened {
 public:
  using Key = std::pair<std::uint64_t, std::uint64_t>;

  template <class Open>
  std::shared_ptr<void> get(const Key& key, Open&& open) {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[key];
    if (entry.users == 0) try {
        entry.handle = open();
      } catch (...) {
        entries_.erase(key);
        throw;
      }
    ++entry.users;
    return {entry.handle, [this, key](void*) { drop(key); }};
  }

 private:
  struct Entry {
    void* handle = nullptr;
    int users = 0;
  };
  void drop(const Key& key) noexcept {
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(key);
    if (--at->second.users > 0) return;
    const cudaError_t result = Close()(at->second.handle);
    entries_.erase(at);
    if (result == cudaSuccess || result == cudaErrorCudartUnloading) return;
    (void)cudaGetLastError();
    log().debug("a peer's handle is not closed: {}", cudaGetErrorString(result));
  }
  std::mutex mutex_;
  std::map<Key, Entry> entries_;
};

struct CloseMemory {
  cudaError_t operator()(void* p) const { return cudaIpcCloseMemHandle(p); }
};
struct CloseEvent {
  cudaError_t operator()(void* e) const { return cudaEventDestroy(static_cast<cudaEvent_t>(e)); }
};

Opened<CloseMemory>& opened_memory() {
  static auto& opened = *new Opened<CloseMemory>;  // groups may go after main
  return opened;
}
Opened<CloseEvent>& opened_events() {
  static auto& opened = *new Opened<CloseEvent>;
  return opened;
}

}  // namespace

void IpcPeers::enable_peer(int index, int other) {
  if (index == other || !enabled_.insert({index, other}).second) return;
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, index, other), "cudaDeviceCanAccessPeer", index);
  if (can == 0)
    throw DeviceError("cuda:" + std::to_string(index) + " can't reach the memory of cuda:" +
                      std::to_string(other) + "; accepted: GPUs with peer access, or the engine nccl");
  const OnDevice on(index);
  const cudaError_t result = cudaDeviceEnablePeerAccess(other, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
    return;
  }
  check(result, "cudaDeviceEnablePeerAccess of cuda:" + std::to_string(other), index);
}

std::byte* IpcPeers::reach(const IpcPost& post, const IpcPlace& place, int index) {
  if (post.process == process_token()) {
    enable_peer(index, post.device);
    return reinterpret_cast<std::byte*>(place.address);
  }
  std::shared_ptr<void>& memory = memory_[{post.process, place.block}];
  if (memory == nullptr)
    memory = opened_memory().get({post.process, place.block}, [&] {
      const OnDevice on(index);
      void* data = nullptr;
      check(cudaIpcOpenMemHandle(&data, place.handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle",
            index);
      return data;
    });
  return static_cast<std::byte*>(memory.get()) + place.offset;
}

cudaEvent_t IpcPeers::event(const IpcPost& post, const IpcEventPost& event, int index) {
  if (post.process == process_token()) return reinterpret_cast<cudaEvent_t>(event.event);
  std::shared_ptr<void>& opened = events_[{post.process, event.id}];
  if (opened == nullptr)
    opened = opened_events().get({post.process, event.id}, [&] {
      const OnDevice on(index);
      cudaEvent_t handle = nullptr;
      check(cudaIpcOpenEventHandle(&handle, event.handle), "cudaIpcOpenEventHandle", index);
      return static_cast<void*>(handle);
    });
  return static_cast<cudaEvent_t>(opened.get());
}

void IpcPeers::wait(const IpcPost& post, const IpcEventPost& shown, const DeviceStream& stream) {
  const int index = stream.device.index;
  const OnDevice on(index);
  check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.handle), event(post, shown, index), 0),
        "cudaStreamWaitEvent(interprocess)", index);
}

void IpcPeers::let_go(const IpcPost& post) {
  for (const std::uint64_t block : post.retired)
    if (block != 0) memory_.erase({post.process, block});
}

}  // namespace lockstep::cuda
