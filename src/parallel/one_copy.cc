#include "parallel/one_copy.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// The blocks that this process holds: a block is there as often as ranks of this process (threads) hold it.
class HeldBlocks {
 public:
  void add(const CommMemory& block) {
    const std::lock_guard lock(mutex_);
    blocks_.emplace(block.as<std::byte>(), block.bytes());
  }
  void remove(const CommMemory& block) {
    const std::lock_guard lock(mutex_);
    blocks_.erase(blocks_.find(block.as<std::byte>()));
  }
  bool hold(const std::byte* data) {
    const std::lock_guard lock(mutex_);
    const auto behind = blocks_.upper_bound(data);
    if (behind == blocks_.begin()) return false;
    const auto& [begin, bytes] = *std::prev(behind);
    return data < begin + bytes;
  }

 private:
  std::mutex mutex_;
  std::multimap<const std::byte*, std::size_t> blocks_;
};

// Never ended: tensors of a program's statics let blocks go late.
HeldBlocks& held_blocks() {
  static auto& blocks = *new HeldBlocks;
  return blocks;
}

}  // namespace

std::unique_ptr<OneCopy> OneCopy::where_possible(const Group& group) {
  Group node = group.split_by_node();
  // Every machine has to have common memory, and one of them a worker to share it with.
  const auto least = group.all_reduce(node.shares_memory() ? 1 : 0, {.op = ReduceOp::min});
  const auto most = group.all_reduce(node.size(), {.op = ReduceOp::max});
  if (least == 1 && (most > 1 || group.size() == 1))
    return std::unique_ptr<OneCopy>(new OneCopy(group, std::move(node)));
  return nullptr;
}

OneCopy::OneCopy(const Group& group) {
  auto copy = where_possible(group);
  if (!copy)
    throw UsageError(
        std::string(
            "parameters that the workers of a machine have one copy of lie in memory that they have in "
            "common, and over ") +
        group.engine() +
        " no two have; accepted: several workers a machine over shared memory (engine shm, or shm+tcp across "
        "machines), parameters that are gathered in units (parallel/units.h), or zero2");
  *this = std::move(*copy);
}

CommMemory OneCopy::allocate(std::size_t bytes) const {
  const CommMemory block = node_.allocate_shared(bytes);
  held_blocks().add(block);
  return {std::shared_ptr<void>(block.data(), [block](void*) { held_blocks().remove(block); }), bytes};
}

bool OneCopy::holds(const void* data) { return held_blocks().hold(static_cast<const std::byte*>(data)); }

Work OneCopy::bring(std::byte* block, std::size_t bytes, std::byte* scratch, std::string_view purpose) const {
  const std::size_t part = bytes / static_cast<std::size_t>(group_.size());
  const std::size_t own = part * static_cast<std::size_t>(group_.rank());
  const Work gathered = group_.all_gather_async(ConstBuffer{block + own, part, DType::u8},
                                                Buffer{scratch, bytes, DType::u8}, {.purpose = purpose});
  return gathered.then([nodes = group_.nodes(),
                        here = group_.nodes()[static_cast<std::size_t>(group_.rank())], place = node_.rank(),
                        workers = node_.size(), block, part, scratch] {
    int others = 0;  // ranks of other machines so far
    for (std::size_t r = 0; r < nodes.size(); ++r)
      if (nodes[r] != here && others++ % workers == place && part > 0)
        std::memcpy(block + r * part, scratch + r * part, part);
  });
}

}  // namespace lockstep
