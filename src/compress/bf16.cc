#include "lockstep/compress/bf16.h"

#include <memory>
#include <utility>
#include <vector>

#include "comm/kernel/reduce.h"

namespace lockstep {
namespace {

constexpr kernel::Reduction kRounding{.dtype = DType::bf16};  // a sum of one: nothing is added or divided

// A bucket on 16 bits, in comm memory of its own: several are under way at a time.
class Halves {
 public:
  Bucket of(const Bucket& bucket) {
    if (bucket.group.name() != group_ || bucket.layout != layout_) memory_.clear();
    group_ = bucket.group.name();
    layout_ = bucket.layout;
    const auto index = static_cast<std::size_t>(bucket.index);
    const std::size_t bytes = bucket.data.count * size_of(DType::bf16);
    if (memory_.size() <= index) memory_.resize(index + 1);
    if (memory_[index].bytes() < bytes) memory_[index] = bucket.group.allocate(bytes);
    Bucket halves = bucket;
    halves.data = {memory_[index].data(), bucket.data.count, DType::bf16};
    return halves;
  }

 private:
  std::string group_;
  int layout_ = 0;
  std::vector<CommMemory> memory_;  // of each bucket
};

void widen(const Buffer& from, const Buffer& to) {
  kernel::widen(to.data, from.data, from.count, DType::bf16);
}

}  // namespace

// A reduce-scatter and an all-gather, both of halves. An all-reduce would send sums as f32, which are more
// bytes.
Exchange bf16_exchange(Exchange::Leaves leaves) {
  const bool gathers = leaves == Exchange::Leaves::everything;
  const Exchange plain = gathers ? all_reduce_exchange() : reduce_scatter_exchange();
  auto run = [gathers, plain, memory = std::make_shared<Halves>()](const Bucket& bucket) {
    if (bucket.data.dtype != DType::f32 || bucket.group.size() == 1) return plain.run(bucket);
    const Bucket halves = memory->of(bucket);
    kernel::finish(halves.data.data, bucket.data.data, bucket.data.count, kRounding);
    const Work scattered = reduce_scatter_exchange().run(halves);
    if (!gathers)
      return scattered.then([from = own_part(halves), to = own_part(bucket), memory] { widen(from, to); });
    const Work gathered =
        bucket.group.all_gather_async(own_part(halves), halves.data, {.purpose = bucket.purpose});
    return when_all(
        {scattered, gathered.then([from = halves.data, to = bucket.data, memory] { widen(from, to); })});
  };
  return {.name = "bf16", .run = std::move(run), .leaves = leaves};
}

}  // namespace lockstep
