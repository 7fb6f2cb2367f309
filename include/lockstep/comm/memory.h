// Comm memory: memory that collectives of a group work on best; on the host its peers reach it directly.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/comm/buffer.h"

namespace lockstep {

// Owns a block; frees it when the last copy of the handle goes. It may outlive the group.
// Zero-filled, aligned to 4096 bytes (64 from the engines that have no memory of their own).
class CommMemory {
 public:
  CommMemory() = default;
  CommMemory(std::shared_ptr<void> owner, std::size_t bytes, Device device = {})
      : owner_(std::move(owner)), bytes_(bytes), device_(device) {}

  void* data() const { return owner_.get(); }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }  // only the processor's is for the host to touch
  template <class T>
  T* as() const {
    return static_cast<T*>(owner_.get());
  }

 private:
  std::shared_ptr<void> owner_;
  std::size_t bytes_ = 0;
  Device device_ = {};
};

}  // namespace lockstep
