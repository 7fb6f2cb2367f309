#include "comm/engine/ipc_commons.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/cuda/check.h"
#include "comm/cuda/ipc_memory.h"
#include "comm/cuda/ipc_peers.h"
#include "comm/cuda/runtime.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

using cuda::CudaRuntime;
using cuda::IpcMemory;
using cuda::IpcPost;

// How a block is found.
struct FoundBlock {
  IpcPost post;             // of its maker; `in` is the block
  std::uint64_t place = 0;  // of the number of ranks that have let go of it, on the host
};
static_assert(std::is_trivially_copyable_v<FoundBlock>);

// Memory that all ranks share, as this one has it.
struct HeldShare {
  CommMemory own;                         // the maker's; else none
  std::shared_ptr<cuda::IpcPeers> peers;  // that has it mapped; null on the maker
  CommMemory number;                      // of ranks that have let go
  int others = 0;                         // how many there are beside the maker
  std::vector<DeviceEvent> until = {};    // where this process's streams are done with it

  std::atomic<std::uint32_t>& gone() const { return *number.as<std::atomic<std::uint32_t>>(); }
  bool is_over() const {
    if (peers == nullptr) return gone().load(std::memory_order_acquire) == static_cast<std::uint32_t>(others);
    return std::ranges::all_of(until,
                               [](const DeviceEvent& event) { return CudaRuntime::get().passed(event); });
  }
  void let_go() {
    own = {};
    if (peers == nullptr) return;
    peers = nullptr;
    gone().fetch_add(1, std::memory_order_release);
  }
};

// Shares that the program has let go of; never ended, since tensors may go after main.
struct LeavingShares {
  std::mutex mutex;
  std::vector<HeldShare> all;
};
LeavingShares& leaving_shares() {
  static auto& leaving = *new LeavingShares;
  return leaving;
}

void leave(HeldShare share, int index) noexcept try {
  if (int device = 0; cudaGetDevice(&device) == cudaErrorCudartUnloading) return;  // the process ends
  if (share.peers != nullptr) share.until = CudaRuntime::get().record_all(index);
  {
    LeavingShares& leaving = leaving_shares();
    const std::lock_guard lock(leaving.mutex);
    leaving.all.push_back(std::move(share));
  }
  IpcCommons::reap();
} catch (const std::exception& problem) {
  log().debug("memory in common on cuda:{} stays until this process ends: {}", index, problem.what());
}

}  // namespace

std::shared_ptr<IpcCommons> IpcCommons::make(std::shared_ptr<Engine> carrier) {
  Composable* const composable = carrier->composable();
  Commons* const host = composable == nullptr ? nullptr : composable->commons();
  if (host == nullptr) return nullptr;
  return std::shared_ptr<IpcCommons>(new IpcCommons(std::move(carrier), *host));
}

std::string IpcCommons::identity(Device device) {
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, device.index), "cudaGetDeviceProperties", device.index);
  std::string bytes(sizeof properties.uuid.bytes, '\0');
  std::memcpy(bytes.data(), static_cast<const char*>(properties.uuid.bytes), bytes.size());
  return "cuda " + bytes;
}

std::string IpcCommons::share(std::size_t bytes, Device device) {
  reap();
  CommMemory memory = IpcMemory::get().allocate(bytes, device);
  const std::shared_ptr<cuda::IpcBlock> block = IpcMemory::get().find(memory.data());
  FoundBlock found;
  found.post.process = cuda::process_token();
  found.post.device = device.index;
  found.post.in = {.block = block->id(),
                   .address = reinterpret_cast<std::uintptr_t>(memory.data()),
                   .handle = block->handle()};
  found.place = host_.share(sizeof(std::atomic<std::uint32_t>));
  const std::lock_guard lock(mutex_);
  made_.emplace(block->id(), std::move(memory));
  return {reinterpret_cast<const char*>(&found), sizeof found};
}

CommMemory IpcCommons::hold(const std::string& text, std::size_t bytes, Device device) {
  FoundBlock found;
  if (text.size() != sizeof found) throw SystemError("what was told of memory in common is cut");
  std::memcpy(&found, text.data(), sizeof found);
  HeldShare share{.own = {},
                  .peers = nullptr,
                  .number = host_.hold(found.place, sizeof(std::atomic<std::uint32_t>)),
                  .others = carrier_->size() - 1};
  void* data = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (const auto mine = made_.find(found.post.in.block);
        mine != made_.end() && found.post.process == cuda::process_token()) {
      share.own = std::move(mine->second);
      made_.erase(mine);
      data = share.own.data();
    }
  }
  if (data == nullptr) try {
      share.peers = std::make_shared<cuda::IpcPeers>();
      data = share.peers->reach(found.post, found.post.in, device.index);
    } catch (const Error&) {
      share.let_go();
      throw;
    }
  const auto held = std::make_shared<HeldShare>(std::move(share));
  return {
      std::shared_ptr<void>(data, [held, index = device.index](void*) { leave(std::move(*held), index); }),
      bytes, device};
}

void IpcCommons::reap() noexcept try {
  std::vector<HeldShare> over;  // let go outside the lock
  {
    LeavingShares& leaving = leaving_shares();
    const std::lock_guard lock(leaving.mutex);
    const auto first = std::partition(leaving.all.begin(), leaving.all.end(),
                                      [](const HeldShare& share) { return !share.is_over(); });
    std::move(first, leaving.all.end(), std::back_inserter(over));
    leaving.all.erase(first, leaving.all.end());
  }
  for (HeldShare& share : over) share.let_go();
} catch (const std::exception& problem) {
  log().debug("memory in common stays: {}", problem.what());
}

}  // namespace lockstep
