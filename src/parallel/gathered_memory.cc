#include "parallel/gathered_memory.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <algorithm>

#include "grad/torch_types.h"
#include "parallel/stream_points.h"

namespace lockstep {

CommMemory gathering_memory(const Group& group, std::size_t bytes, Device device) {
  const std::size_t least = std::max<std::size_t>(1, bytes);
  if (device.kind == Device::Kind::cpu) return group.allocate(least);
  const torch::Device where = torch_device(device);
  const torch::Tensor tensor = torch::empty({static_cast<std::int64_t>(least)},
                                            torch::TensorOptions().dtype(torch::kUInt8).device(where));
  return {std::shared_ptr<void>(tensor.data_ptr(),
                                [tensor, where](void*) {
                                  const c10::impl::VirtualGuardImpl guard(where.type());
                                  guard.recordDataPtrOnStream(tensor.storage().data_ptr(),
                                                              guard.getStream(where));
                                }),
          least, device};
}

// The oldest first.
void GatheredMemory::let_go_beyond(std::size_t bytes) {
  while (held_ > bytes && !free_.empty()) {
    held_ -= free_.front().bytes;
    come_behind(device_, free_.front().given_back);
    free_.erase(free_.begin());
  }
}

CommMemory GatheredMemory::take(std::size_t bytes) {
  taken_ += bytes;
  const auto fits = std::ranges::find_if(free_, [&](const Piece& piece) { return piece.bytes == bytes; });
  if (fits != free_.end()) {
    come_behind(device_, fits->given_back);
    CommMemory memory = std::move(fits->memory);
    free_.erase(fits);
    return memory;
  }
  let_go_beyond(budget_ > bytes ? budget_ - bytes : 0);
  CommMemory memory = gathering_memory(group_, bytes, device_);
  held_ += bytes;
  peak_ = std::max(peak_, held_);
  return memory;
}

void GatheredMemory::give_back(CommMemory memory, std::size_t bytes) {
  taken_ -= bytes;
  free_.push_back({std::move(memory), bytes, point_of_stream(device_)});
  let_go_beyond(budget_);
}

}  // namespace lockstep
