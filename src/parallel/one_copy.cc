#include "parallel/one_copy.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "grad/waited_for.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/device.h"

namespace lockstep {
namespace {

// On a device: as few pieces as it takes so that workers take alike parts of the copy.
constexpr std::size_t kPieceBytes = std::size_t{32} << 20;

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

OneCopy::OneCopy(Group group, Group node, Device device)
    : group_(std::move(group)),
      node_(std::move(node)),
      device_(device),
      row_(
          [workers = node_, device, pieces = 0](std::size_t bytes) mutable {
            // On a device it is the maker's process that takes it: each takes its share of the pieces.
            const CommMemory block = workers.allocate_shared(bytes, device, pieces++ % workers.size());
            held_blocks().add(block);
            return CommMemory(
                std::shared_ptr<void>(block.data(), [block](void*) { held_blocks().remove(block); }), bytes,
                device);
          },
          device, kPieceBytes) {}

std::unique_ptr<OneCopy> OneCopy::where_possible(const Group& group, Device device) {
  if (device.kind != Device::Kind::cpu) {
    if (!group.shares_device(device)) return nullptr;
    return std::unique_ptr<OneCopy>(new OneCopy(group, group, device));
  }
  Group node = group.split_by_node();
  // Every machine has to have common memory, and one of them a worker to share it with.
  const auto least = group.all_reduce(node.shares_memory() ? 1 : 0, {.op = ReduceOp::min});
  const auto most = group.all_reduce(node.size(), {.op = ReduceOp::max});
  if (least == 1 && (most > 1 || group.size() == 1))
    return std::unique_ptr<OneCopy>(new OneCopy(group, std::move(node), device));
  return nullptr;
}

std::unique_ptr<OneCopy> OneCopy::make(const Group& group, Device device) {
  auto copy = where_possible(group, device);
  if (copy) return copy;
  if (device.kind != Device::Kind::cpu)
    throw UsageError("Sharded: `parameters` says mapped, and they are on " + to_string(device) +
                     ", where the workers have no memory in common over " + group.engine() +
                     "; accepted: gathered, on cpu, or all workers on one GPU over ipc");
  throw UsageError(
      std::string("parameters that the workers of a machine have one copy of lie in memory that they have in "
                  "common, and over ") +
      group.engine() +
      " no two have; accepted: several workers a machine over shared memory (engine shm, or shm+tcp across "
      "machines), parameters that are gathered in units (parallel/units.h), or zero2");
}

CommMemory OneCopy::allocate(std::size_t bytes) { return row_.take(bytes); }

void OneCopy::meet(std::string_view purpose) const {
  if (group_.size() == 1) return;
  if (device_.kind == Device::Kind::cpu) return group_.barrier({.purpose = purpose});
  group_.barrier(device_, {.purpose = purpose});
}

bool OneCopy::holds(const void* data) { return held_blocks().hold(static_cast<const std::byte*>(data)); }

Work OneCopy::bring(std::byte* block, std::size_t bytes, std::byte* scratch, std::string_view purpose) const {
  const std::size_t part = bytes / static_cast<std::size_t>(group_.size());
  const std::size_t own = part * static_cast<std::size_t>(group_.rank());
  WaitedFor begun;
  const Work& gathered = begun.add([&] {
    return group_.all_gather_async(ConstBuffer{block + own, part, DType::u8},
                                   Buffer{scratch, bytes, DType::u8}, {.purpose = purpose});
  });
  Work brought =
      gathered.then([nodes = group_.nodes(), here = group_.nodes()[static_cast<std::size_t>(group_.rank())],
                     place = node_.rank(), workers = node_.size(), block, part, scratch] {
        int others = 0;  // ranks of other machines so far
        for (std::size_t r = 0; r < nodes.size(); ++r)
          if (nodes[r] != here && others++ % workers == place && part > 0)
            std::memcpy(block + r * part, scratch + r * part, part);
      });
  begun.let_go();
  return brought;
}

}  // namespace lockstep
