// Memory on GPUs that other processes of this machine map: what `allocate` of the engine ipc gives.
//
// A block is one cudaMalloc of its own (a multiple of 2 MiB, below which CUDA puts several in one place that
// can only be mapped whole). It is freed when the program has given it back, the streams are done with it,
// and no engine holds it for peers that map it.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/comm/device.h"
#include "lockstep/comm/memory.h"

namespace lockstep::cuda {

class IpcBlock {
 public:
  IpcBlock(std::uint64_t id, void* base, std::size_t bytes, int index);
  ~IpcBlock();
  IpcBlock(const IpcBlock&) = delete;
  IpcBlock& operator=(const IpcBlock&) = delete;

  std::uint64_t id() const { return id_; }  // in this process, from 1
  std::byte* base() const { return static_cast<std::byte*>(base_); }
  std::size_t bytes() const { return bytes_; }
  int index() const { return index_; }
  const cudaIpcMemHandle_t& handle() const { return handle_; }

  // The program has no use for it any more. Once.
  void give_back() noexcept;
  // It has said so, and no stream of this process works on it.
  bool is_over() const;

 private:
  std::uint64_t id_;
  void* base_;
  std::size_t bytes_;
  int index_;
  cudaIpcMemHandle_t handle_ = {};
  std::atomic<bool> gone_ = false;
  std::vector<DeviceEvent> until_;  // written before gone_
};

class IpcMemory {
 public:
  static IpcMemory& get();  // never destroyed

  CommMemory allocate(std::size_t bytes, Device device);
  // The block in which `data` lies; null: none.
  std::shared_ptr<IpcBlock> find(const void* data) const;

 private:
  IpcMemory() = default;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, std::shared_ptr<IpcBlock>> blocks_;  // by their end
  std::uint64_t next_ = 1;
};

// What tells this process from others, on any machine and in any container.
std::uint64_t process_token();

}  // namespace lockstep::cuda
