#include "lockstep/compress/bf16.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "comm/kernel/reduce.h"
#include "grad/torch_types.h"

namespace lockstep {
namespace {

// Buckets on 16 bits, each in comm memory of its own, since several are under way at a time: those of several
// models too, where one exchange serves them.
class Halves {
 public:
  struct Staged {
    Bucket bucket;
    CommMemory memory;  // held by who still reads it
  };

  Staged of(const Bucket& bucket) {
    const std::lock_guard lock(mutex_);
    ++calls_;
    forget_old();
    const std::size_t bytes = bucket.data.count * size_of(DType::bf16);
    Entry& entry = entries_[bucket.data.data];
    if (entry.memory.bytes() < bytes || entry.group != bucket.group.name())
      entry = {.memory = bucket.group.allocate(bytes, bucket.data.device), .group = bucket.group.name()};
    entry.used = calls_;
    Bucket halves = bucket;
    halves.data = {entry.memory.data(), bucket.data.count, DType::bf16, bucket.data.device};
    return {std::move(halves), entry.memory};
  }

 private:
  struct Entry {
    CommMemory memory;
    std::string group;
    std::int64_t used = 0;
  };

  // Of layouts and groups that are gone: those in use come again every few steps. One that is missed is made
  // again.
  void forget_old() {
    const auto recent = static_cast<std::int64_t>(16 + 4 * entries_.size());
    std::erase_if(entries_, [&](const auto& entry) { return entry.second.used + recent < calls_; });
  }

  std::mutex mutex_;
  std::map<const void*, Entry> entries_;  // by where the bucket lies
  std::int64_t calls_ = 0;
};

// On a device libtorch's, which rounds alike, on the current stream.
void convert_on_device(const Buffer& from, const Buffer& to) {
  const torch::NoGradGuard no_grad;
  tensor_at(to, nullptr).copy_(tensor_at(from, nullptr), /*non_blocking=*/true);
}

void round_off(const Buffer& from, const Buffer& to) {
  if (from.device.kind != Device::Kind::cpu) return convert_on_device(from, to);
  kernel::narrow(to.data, from.data, from.count, DType::bf16);
}

void widen(const Buffer& from, const Buffer& to) {
  if (from.device.kind != Device::Kind::cpu) return convert_on_device(from, to);
  kernel::widen(to.data, from.data, from.count, DType::bf16);
}

}  // namespace

Exchange bf16_exchange(Exchange::Leaves leaves) {
  const bool gathers = leaves == Exchange::Leaves::everything;
  const Exchange plain = gathers ? all_reduce_exchange() : reduce_scatter_exchange();
  auto run = [gathers, plain, memory = std::make_shared<Halves>()](const Bucket& bucket) {
    if (bucket.data.dtype != DType::f32 || bucket.group.size() == 1) return plain.run(bucket);
    const auto [halves, held] = memory->of(bucket);
    round_off(bucket.data, halves.data);
    const auto left = [&](const Bucket& of) { return gathers ? of.data : own_part(of); };
    return plain.run(halves).then([from = left(halves), to = left(bucket), held = held] { widen(from, to); });
  };
  // Without the conversions, of which nobody has measured what they cost.
  auto expected = [plain](const Group& group, std::size_t count, DType dtype) {
    return plain.expected_seconds(group, count, dtype == DType::f32 ? DType::bf16 : dtype);
  };
  return {.name = "bf16", .run = std::move(run), .leaves = leaves, .expected_seconds = std::move(expected)};
}

}  // namespace lockstep
