// Comm memory for the buckets of a model. On a device, where a piece is a multiple of megabytes, they are
// parts of one piece, or of as few as there may be; on the processor each is a piece of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "base/round_up.h"
#include "lockstep/comm/group.h"

namespace lockstep {

class CommRow {
 public:
  CommRow(const Group& group, Device device)
      : CommRow([group, device](std::size_t bytes) { return group.allocate(bytes, device); }, device) {}
  // `piece`: gives one. On a device none is of more than so many bytes, but for what is larger by itself.
  CommRow(std::function<CommMemory(std::size_t bytes)> piece, Device device,
          std::size_t piece_bytes = ~std::size_t{0})
      : piece_(std::move(piece)), device_(device), piece_bytes_(piece_bytes) {}

  // So much will be taken. All of it before the first is, in the same order.
  void reserve(std::size_t bytes) { reserved_.push_back(aligned(bytes)); }
  CommMemory take(std::size_t bytes) {
    const std::size_t least = std::max<std::size_t>(1, bytes);
    if (device_.kind == Device::Kind::cpu) return piece_(least);
    const std::size_t wanted = aligned(bytes);
    if (used_ + wanted > row_.bytes()) {
      row_ = piece_(std::max(wanted, next_bytes()));
      used_ = 0;
    }
    if (!reserved_.empty()) reserved_.pop_front();
    auto* const place = row_.as<std::byte>() + std::exchange(used_, used_ + wanted);
    return {std::shared_ptr<void>(place, [row = row_](void*) {}), least, device_};
  }

 private:
  static constexpr std::size_t kAlignment = 256;
  static std::size_t aligned(std::size_t bytes) {
    return round_up(std::max<std::size_t>(1, bytes), kAlignment);
  }

  // Of what is to be taken next, as much as goes into a piece.
  std::size_t next_bytes() const {
    std::size_t bytes = 0;
    for (const std::size_t one : reserved_) {
      if (bytes > 0 && bytes + one > piece_bytes_) break;
      bytes += one;
    }
    return bytes;
  }

  std::function<CommMemory(std::size_t bytes)> piece_;
  Device device_;
  std::size_t piece_bytes_;
  std::deque<std::size_t> reserved_;  // and not taken yet
  std::size_t used_ = 0;              // of the last piece
  CommMemory row_;
};

}  // namespace lockstep
