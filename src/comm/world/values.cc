// What programs exchange beside large buffers: numbers, texts, lists of any length.
#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "comm/call/call.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/mean.h"

namespace lockstep {

GatheredElements gather_elements(const Group& group, ConstBuffer own, CallOptions options) {
  if (own.data == nullptr && own.count > 0)
    throw UsageError("all_gather: a null buffer of " + std::to_string(own.count) + " " +
                     to_string(own.dtype));
  if (own.device.kind != Device::Kind::cpu)
    throw UsageError("all_gather of lists: the elements are on " + to_string(own.device) +
                     "; accepted: on cpu");
  GatheredElements all;
  for (const std::int64_t count : group.all_gather(static_cast<std::int64_t>(own.count), options))
    all.counts.push_back(static_cast<std::size_t>(count));
  const auto longest = std::max_element(all.counts.begin(), all.counts.end());
  all.longest = *longest;
  if (all.longest > kMostElements / all.counts.size())  // so say all
    throw UsageError("all_gather: " + group.named(static_cast<int>(longest - all.counts.begin())) +
                     " gives " + std::to_string(all.longest) + " elements, for each of " +
                     std::to_string(all.counts.size()) + " ranks that is larger than any memory");
  all.stride = all.longest * size_of(own.dtype);
  try {
    all.bytes.resize(all.stride * all.counts.size());
  } catch (const std::bad_alloc&) {
    throw SystemError("all_gather: " + group.named(group.rank()) + " has no memory for " +
                      std::to_string(all.counts.size()) + " × " + std::to_string(all.stride) + " bytes");
  }
  // In place: its own slice of what all get.
  std::byte* const mine = all.bytes.data() + static_cast<std::size_t>(group.rank()) * all.stride;
  if (own.count > 0) std::memcpy(mine, own.data, own.bytes());
  group.all_gather(ConstBuffer(mine, all.longest, own.dtype),
                   Buffer{all.bytes.data(), all.longest * all.counts.size(), own.dtype}, options);
  return all;
}

std::vector<std::string> AllGather<std::string>::call(const Group& group, const std::string& x,
                                                      const CallOptions& options) {
  const GatheredElements all = gather_elements(group, ConstBuffer(x.data(), x.size(), DType::u8), options);
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < all.counts.size(); ++r)
    texts.emplace_back(reinterpret_cast<const char*>(all.begin_of(r)), all.counts[r]);
  return texts;
}

void Group::broadcast(std::string& text, int root, CallOptions options) const {
  std::int64_t length = static_cast<std::int64_t>(text.size());
  broadcast(Buffer{&length, 1, DType::i64}, root, options);
  text.resize(static_cast<std::size_t>(length));
  broadcast(Buffer{text.data(), text.size(), DType::u8}, root, options);
}

double mean(const Group& group, double sum, double weight, CallOptions options) {
  if (!(weight >= 0) || std::isinf(weight))
    throw UsageError("mean: a weight of " + std::to_string(weight) + "; accepted: 0 or more, finite");
  double both[2] = {sum, weight};
  options.op = ReduceOp::sum;
  group.all_reduce(both, options);
  return both[1] > 0 ? both[0] / both[1] : std::numeric_limits<double>::quiet_NaN();
}

double mean(const Group& group, double value) { return mean(group, value, 1); }

}  // namespace lockstep
