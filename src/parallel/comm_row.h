// Comm memory for the buckets of a model. On a device, where a piece is a multiple of megabytes, they are
// parts of one piece; on the processor each is a piece of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/round_up.h"
#include "lockstep/comm/group.h"

namespace lockstep {

class CommRow {
 public:
  CommRow(Group group, Device device) : group_(std::move(group)), device_(device) {}

  // So much will be taken. All of it before the first is.
  void reserve(std::size_t bytes) { all_bytes_ += aligned(bytes); }
  CommMemory take(std::size_t bytes) {
    const std::size_t least = std::max<std::size_t>(1, bytes);
    if (device_.kind == Device::Kind::cpu) return group_.allocate(least);
    if (row_.data() == nullptr) row_ = group_.allocate(all_bytes_, device_);
    auto* const place = row_.as<std::byte>() + std::exchange(used_, used_ + aligned(bytes));
    return {std::shared_ptr<void>(place, [row = row_](void*) {}), least, device_};
  }

 private:
  static constexpr std::size_t kAlignment = 256;
  static std::size_t aligned(std::size_t bytes) {
    return round_up(std::max<std::size_t>(1, bytes), kAlignment);
  }

  Group group_;
  Device device_;
  std::size_t all_bytes_ = 0;
  std::size_t used_ = 0;
  CommMemory row_;
};

}  // namespace lockstep
