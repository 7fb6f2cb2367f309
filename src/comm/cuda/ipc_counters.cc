#include "comm/cuda/ipc_counters.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "comm/cuda/check.h"
#include "comm/cuda/memory_ops.h"
#include "lockstep/base/log.h"

namespace lockstep::cuda {
namespace {

// More than any round's number.
constexpr std::uint64_t kReleased = std::uint64_t{1} << 62;

// Memory is registered once a process: ranks that are threads have it at the same address.
class RegisteredPages {
 public:
  static RegisteredPages& get() {
    static RegisteredPages& all = *new RegisteredPages;  // groups may go after main
    return all;
  }

  std::shared_ptr<void> add(void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    int& users = users_[data];
    if (users == 0) {
      const cudaError_t result =
          cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
      if (result != cudaSuccess) users_.erase(data);
      int index = 0;
      (void)cudaGetDevice(&index);
      check(result, "cudaHostRegister of the counters", index);
    }
    ++users;
    return {data, [this](void* gone) { drop(gone); }};
  }

 private:
  void drop(void* data) noexcept {
    const std::lock_guard lock(mutex_);
    const auto at = users_.find(data);
    if (--at->second > 0) return;
    users_.erase(at);
    const cudaError_t result = cudaHostUnregister(data);
    if (result == cudaSuccess || result == cudaErrorCudartUnloading) return;
    (void)cudaGetLastError();
    log().debug("counters stay registered: {}", cudaGetErrorString(result));
  }

  std::mutex mutex_;
  std::map<void*, int> users_;
};

}  // namespace

struct IpcCounters::Page {
  struct Round {
    std::atomic<std::uint64_t> steps[2];  // by Step
  };
  Round rounds[kRounds];
};

IpcCounters::IpcCounters(CommMemory memory, int rank, int ranks)
    : memory_(std::move(memory)),
      rank_(rank),
      ranks_(ranks),
      registered_(RegisteredPages::get().add(memory_.data(), bytes_for(ranks))) {
  static_assert(sizeof(Page) == kPageBytes);
}

IpcCounters::~IpcCounters() = default;

IpcCounters::Page& IpcCounters::page(int rank) const { return static_cast<Page*>(memory_.data())[rank]; }

std::uintptr_t IpcCounters::address(int rank, Step step, std::uint64_t round, int index) {
  std::uintptr_t& base = seen_by_[index];
  if (base == 0) {
    const OnDevice on(index);
    void* data = nullptr;
    check(cudaHostGetDevicePointer(&data, memory_.data(), 0), "cudaHostGetDevicePointer", index);
    base = reinterpret_cast<std::uintptr_t>(data);
  }
  const auto* const counter = &page(rank).rounds[round % kRounds].steps[static_cast<int>(step)];
  return base + static_cast<std::uintptr_t>(reinterpret_cast<const std::byte*>(counter) -
                                            static_cast<const std::byte*>(memory_.data()));
}

void IpcCounters::write(Step step, std::uint64_t round, const DeviceStream& stream) {
  write_number(stream, address(rank_, step, round, stream.device.index), round);
}

void IpcCounters::wait(Step step, std::uint64_t round, const DeviceStream& stream, bool own) {
  std::vector<NumberWait> waits;
  waits.reserve(static_cast<std::size_t>(ranks_));
  for (int r = 0; r < ranks_; ++r)
    if (own || r != rank_) waits.push_back({address(r, step, round, stream.device.index), round});
  wait_for_numbers(stream, waits);
}

void IpcCounters::release(int rank) noexcept {
  for (Page::Round& round : page(rank).rounds)
    for (std::atomic<std::uint64_t>& step : round.steps) step.store(kReleased, std::memory_order_release);
}

}  // namespace lockstep::cuda
