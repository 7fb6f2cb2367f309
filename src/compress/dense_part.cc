#include "compress/dense_part.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "comm/kernel/reduce.h"
#include "compress/arithmetic.h"
#include "compress/tree_sum.h"

namespace lockstep::compress {
namespace {

// The tree's sum of a tensor over this worker's subtrees, in place and in the bucket's type. Null: none has
// it.
void* sum_here(const Bucket& bucket, std::size_t t) {
  const kernel::Reduction sum{.dtype = bucket.data.dtype};
  const BucketTensor& tensor = bucket.tensors[t];
  std::vector<void*> level;
  for (const SubtreeSum& part : bucket.sums)
    level.push_back(part.has[t] == 0
                        ? nullptr
                        : static_cast<std::byte*>(part.data) + tensor.offset * size_of(bucket.data.dtype));
  for (std::size_t step = 1; step < level.size(); step *= 2)
    for (std::size_t k = 0; k + step < level.size(); k += 2 * step) {
      if (level[k] != nullptr && level[k + step] != nullptr)
        kernel::combine(level[k], level[k], level[k + step], tensor.count, sum);
      else if (level[k] == nullptr)
        level[k] = level[k + step];
    }
  return level.empty() ? nullptr : level[0];
}

class DensePart final : public Method {
 public:
  std::string name() const override { return "none"; }
  bool gathers() const override { return false; }
  std::string why_dense(const std::vector<std::int64_t>&, std::size_t) const override {
    return "nothing compresses it";
  }
  std::size_t payload_bytes(const std::vector<std::int64_t>& sizes) const override {
    return count_of(sizes) * sizeof(float);
  }
  void bind(const Setting& setting, const std::vector<NamedTensor>&) override { setting_ = setting; }

  Work run(const std::shared_ptr<Flight>& flight, std::vector<std::size_t> members) override {
    // Sums of 16 bits are rounded at every node, as in a bucket that travels whole: the bits of a tensor must
    // not depend on what else is in its bucket.
    if (flight->bucket.data.dtype != DType::f32) return run_16_bits(flight, std::move(members));
    std::size_t total = 0;
    for (const std::size_t m : members) total += flight->bucket.tensors[m].count;
    const Group& group = setting_.lines.first;
    auto* const packed =
        reinterpret_cast<float*>(staging_.of(group, flight->bucket.index, total * sizeof(float)));
    setting_.savings->add_bytes(dense_bytes(*flight, members), static_cast<double>(total * sizeof(float)));
    float* to = packed;
    for (const std::size_t m : members) {
      const BucketTensor& tensor = flight->bucket.tensors[m];
      const float* const sum =
          !setting_.carriage->speaks()
              ? nullptr
              : tree_sum_in_place(flight->sums, tensor.offset, tensor.count,
                                  [&](std::size_t k) { return flight->there[k][m] != Presence::absent; });
      if (sum != nullptr)
        std::memcpy(to, sum, tensor.count * sizeof(float));
      else
        fill({to, tensor.count}, -0.0f);
      to += tensor.count;
    }
    const CallOptions options{
        .op = ReduceOp::avg, .divisor = flight->bucket.divisor, .purpose = flight->bucket.purpose};
    return group.all_reduce_async(Buffer{packed, total, DType::f32}, options)
        .then([flight, packed, members = std::move(members)] {
          const float* from = packed;
          for (const std::size_t m : members) {
            const std::span<float> out = flight->out(m);
            std::memcpy(out.data(), from, out.size_bytes());
            from += out.size();
          }
        });
  }

 private:
  Work run_16_bits(const std::shared_ptr<Flight>& flight, std::vector<std::size_t> members) {
    const DType dtype = flight->bucket.data.dtype;
    const std::size_t size = size_of(dtype);
    std::size_t total = 0;
    for (const std::size_t m : members) total += flight->bucket.tensors[m].count;
    const Group& group = setting_.lines.first;
    std::byte* const packed = staging_.of(group, flight->bucket.index, total * size);
    setting_.savings->add_bytes(dense_bytes(*flight, members), static_cast<double>(total * size));
    std::byte* to = packed;
    for (const std::size_t m : members) {
      const std::size_t count = flight->bucket.tensors[m].count;
      const void* const sum = setting_.carriage->speaks() ? sum_here(flight->bucket, m) : nullptr;
      if (sum != nullptr)
        std::memcpy(to, sum, count * size);
      else  // negative zeros
        std::fill_n(reinterpret_cast<std::uint16_t*>(to), count, std::uint16_t{0x8000});
      to += count * size;
    }
    const CallOptions options{
        .op = ReduceOp::avg, .divisor = flight->bucket.divisor, .purpose = flight->bucket.purpose};
    return group.all_reduce_async(Buffer{packed, total, dtype}, options)
        .then([flight, packed, dtype, size, members = std::move(members)] {
          const std::byte* from = packed;
          for (const std::size_t m : members) {
            const std::span<float> out = flight->out(m);
            kernel::widen(out.data(), from, out.size(), dtype);  // narrowed again, which is exact
            from += out.size() * size;
          }
        });
  }

  Setting setting_;
  Staging staging_;
};

}  // namespace

std::unique_ptr<Method> dense_part() { return std::make_unique<DensePart>(); }

Work run_dense(const Bucket& bucket, const Exchange& plain) {
  const kernel::Reduction sum{.dtype = bucket.data.dtype};
  const std::size_t size = size_of(bucket.data.dtype);
  for (std::size_t t = 0; t < bucket.tensors.size(); ++t) {
    const BucketTensor& tensor = bucket.tensors[t];
    std::vector<void*> level;
    for (const SubtreeSum& part : bucket.sums)  // the first has negative zeros where it has nothing
      level.push_back(part.has[t] != 0 || level.empty()
                          ? static_cast<std::byte*>(part.data) + tensor.offset * size
                          : nullptr);
    for (std::size_t step = 1; step < level.size(); step *= 2)
      for (std::size_t k = 0; k + step < level.size(); k += 2 * step) {
        if (level[k] != nullptr && level[k + step] != nullptr)
          kernel::combine(level[k], level[k], level[k + step], tensor.count, sum);
        else if (level[k] == nullptr)
          level[k] = level[k + step];
      }
  }
  return plain.run(bucket);
}

}  // namespace lockstep::compress
