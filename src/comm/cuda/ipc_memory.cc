#include "comm/cuda/ipc_memory.h"

#include <algorithm>
#include <random>

#include "comm/cuda/check.h"
#include "comm/cuda/runtime.h"
#include "lockstep/base/log.h"

namespace lockstep::cuda {
namespace {

constexpr std::size_t kGranule = std::size_t{2} << 20;

}  // namespace

IpcBlock::IpcBlock(std::uint64_t id, void* base, std::size_t bytes, int index)
    : id_(id), base_(base), bytes_(bytes), index_(index) {
  const OnDevice on(index);
  check(cudaIpcGetMemHandle(&handle_, base), "cudaIpcGetMemHandle", index);
}

IpcBlock::~IpcBlock() { CudaRuntime::get().give_back(base_, bytes_, index_); }

void IpcBlock::give_back() noexcept {
  try {
    until_ = CudaRuntime::get().record_all(index_);
  } catch (const std::exception& problem) {
    log().debug("a block on cuda:{} is given back though the device failed: {}", index_, problem.what());
  }
  gone_.store(true, std::memory_order_release);
}

bool IpcBlock::is_over() const {
  if (!gone_.load(std::memory_order_acquire)) return false;
  return std::ranges::all_of(until_,
                             [](const DeviceEvent& event) { return CudaRuntime::get().passed(event); });
}

IpcMemory& IpcMemory::get() {
  static IpcMemory& memory = *new IpcMemory;
  return memory;
}

CommMemory IpcMemory::allocate(std::size_t bytes, Device device) {
  const std::size_t rounded = std::max((bytes + kGranule - 1) / kGranule, std::size_t{1}) * kGranule;
  CudaRuntime& runtime = CudaRuntime::get();
  void* const data = runtime.take(rounded, device.index, "comm memory");
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = next_++;
  }
  std::shared_ptr<IpcBlock> block;
  try {
    block = std::make_shared<IpcBlock>(id, data, rounded, device.index);
  } catch (...) {
    runtime.give_back(data, rounded, device.index);
    throw;
  }
  const auto end = reinterpret_cast<std::uintptr_t>(data) + rounded;
  {
    const std::lock_guard lock(mutex_);
    blocks_.emplace(end, block);
  }
  std::shared_ptr<void> owner(data, [end](void*) {
    std::shared_ptr<IpcBlock> gone;
    {
      const std::lock_guard lock(get().mutex_);
      const auto at = get().blocks_.find(end);
      gone = std::move(at->second);
      get().blocks_.erase(at);
    }
    gone->give_back();
  });
  runtime.fill(data, std::byte{0}, rounded, runtime.current_stream(device.index));
  return {std::move(owner), bytes, device};
}

std::shared_ptr<IpcBlock> IpcMemory::find(const void* data) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::lock_guard lock(mutex_);
  const auto at = blocks_.upper_bound(address);
  if (at == blocks_.end() || reinterpret_cast<std::uintptr_t>(at->second->base()) > address) return nullptr;
  return at->second;
}

std::uint64_t process_token() {
  static const std::uint64_t token = [] {
    std::random_device random;
    return (std::uint64_t{random()} << 32) ^ random();
  }();
  return token;
}

}  // namespace lockstep::cuda
