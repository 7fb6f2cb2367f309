#include "compress/method.h"

#include <algorithm>
#include <cstring>

namespace lockstep::compress {

std::size_t count_of(const std::vector<std::int64_t>& sizes) {
  std::size_t count = 1;
  for (const std::int64_t size : sizes) count *= static_cast<std::size_t>(size);
  return count;
}

bool is_needed(const Flight& flight, const Setting& setting, std::size_t tensor) {
  if (setting.leaves == Exchange::Leaves::everything) return true;
  const Bucket& bucket = flight.bucket;
  const std::size_t count = own_part(bucket).count;
  const std::size_t begin = count * static_cast<std::size_t>(bucket.group.rank());
  const BucketTensor& t = bucket.tensors[tensor];
  return t.offset < begin + count && t.offset + t.count > begin;
}

double dense_bytes(const Flight& flight, const std::vector<std::size_t>& members) {
  double bytes = 0;
  for (const std::size_t m : members)
    bytes += static_cast<double>(flight.bucket.tensors[m].count * size_of(flight.bucket.data.dtype));
  return bytes;
}

std::byte* Staging::of(const Group& group, int bucket, std::size_t bytes) {
  const auto b = static_cast<std::size_t>(bucket);
  if (memory_.size() <= b) memory_.resize(b + 1);
  if (memory_[b].data() == nullptr || memory_[b].bytes() < bytes) {
    memory_[b] = group.allocate(std::max<std::size_t>(bytes, 64));
    std::memset(memory_[b].data(), 0, memory_[b].bytes());
  }
  return memory_[b].as<std::byte>();
}

}  // namespace lockstep::compress
