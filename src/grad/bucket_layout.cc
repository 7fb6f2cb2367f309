#include "grad/bucket_layout.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/round_up.h"

namespace lockstep {

namespace {

constexpr std::size_t kSmallPart = 64;  // what is added to a bucket is at most so small a part of it

// Many ranks and a line for each would make a small bucket a large one: it gets less than one element a rank.
std::size_t even_count(std::size_t count, DType dtype, std::size_t ranks) {
  const std::size_t lines = round_up(count, ranks * (kTensorAlignment / size_of(dtype)));
  return lines - count <= count / kSmallPart ? lines : round_up(count, ranks);
}

}  // namespace

BucketLayout plan_buckets(std::span<const ParameterShape> parameters, std::span<const int> order,
                          std::size_t first_bytes, std::size_t cap_bytes, int ranks) {
  struct Open {
    BucketPlan plan;
    std::size_t limit;
    std::size_t last = 0;  // position of its newest member
  };
  std::vector<Open> closed;
  std::map<std::tuple<int, DType, DType>, Open> open;  // by unit, the gradients' type and the parameters'
  const auto close = [&](Open& bucket) {
    if (!bucket.plan.members.empty()) closed.push_back(std::move(bucket));
  };
  for (std::size_t position = 0; position < order.size(); ++position) {
    const int index = order[position];
    const auto [count, dtype, own, unit] = parameters[static_cast<std::size_t>(index)];
    const std::size_t step = kTensorAlignment / size_of(dtype);
    const std::size_t room = round_up(count, step);
    const std::tuple kind(unit, dtype, own.value_or(dtype));
    const std::size_t first = unit == 0 ? std::min(first_bytes, cap_bytes) : cap_bytes;
    const auto found = open.find(kind);
    Open& bucket =
        found != open.end() ? found->second : open.emplace(kind, Open{{dtype, 0, {}}, first}).first->second;
    if (!bucket.plan.members.empty() && (bucket.plan.count + room) * size_of(dtype) > bucket.limit) {
      close(bucket);
      bucket = Open{{dtype, 0, {}}, cap_bytes};
    }
    bucket.plan.members.push_back(index);
    bucket.plan.count += room;
    bucket.last = position;
  }
  for (auto& [kind, bucket] : open) close(bucket);
  std::sort(closed.begin(), closed.end(), [](const Open& a, const Open& b) { return a.last < b.last; });

  BucketLayout layout;
  layout.placements.resize(parameters.size());
  for (Open& bucket : closed) {
    std::size_t offset = 0;
    for (const int index : bucket.plan.members) {
      const auto [count, dtype, own, unit] = parameters[static_cast<std::size_t>(index)];
      const std::size_t step = kTensorAlignment / size_of(dtype);
      layout.placements[static_cast<std::size_t>(index)] = {static_cast<int>(layout.buckets.size()), offset};
      offset += round_up(count, step);
    }
    bucket.plan.count = even_count(bucket.plan.count, bucket.plan.dtype, static_cast<std::size_t>(ranks));
    layout.buckets.push_back(std::move(bucket.plan));
  }
  return layout;
}

BucketOffsets place_buckets(const BucketLayout& layout, std::size_t alignment) {
  BucketOffsets offsets;
  for (const BucketPlan& plan : layout.buckets) {
    offsets.begins.push_back(offsets.bytes);
    offsets.bytes += round_up(plan.count * size_of(plan.dtype), alignment);
  }
  offsets.bytes = std::max(offsets.bytes, kBucketAlignment);
  return offsets;
}

std::vector<std::string> bucket_labels(const BucketLayout& layout, std::span<const std::string> names) {
  std::vector<std::string> labels;
  for (const BucketPlan& plan : layout.buckets) {
    const std::string& first = names[static_cast<std::size_t>(plan.members.front())];
    const std::string& last = names[static_cast<std::size_t>(plan.members.back())];
    labels.push_back("bucket " + std::to_string(labels.size() + 1) + " of " +
                     std::to_string(layout.buckets.size()) + " (" + first +
                     (plan.members.size() > 1 ? " … " + last : "") + ")");
  }
  return labels;
}

}  // namespace lockstep
