#include "grad/bucket_size.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "lockstep/base/log.h"

namespace lockstep {
namespace {

constexpr double kSizesMb[] = {1, 2, 4, 8, 16, kLargestBucketMb};
constexpr double kAboutAsFast = 1.1;

std::size_t size_in_bytes(double mb) { return static_cast<std::size_t>(mb * (1 << 20)); }

}  // namespace

BucketSize choose_bucket_size(const std::function<double(std::size_t)>& seconds) {
  const auto a_byte = [&](double mb) {
    const std::size_t bytes = size_in_bytes(mb);
    return seconds(bytes) / static_cast<double>(bytes);
  };
  const double largest = a_byte(kLargestBucketMb);
  if (!(largest > 0)) return {kLargestBucketMb, "what an all-reduce costs here is not known"};
  for (const double mb : kSizesMb) {
    const double cost = a_byte(mb);
    if (mb == kLargestBucketMb || !(cost > 0) || cost > kAboutAsFast * largest) continue;
    return {mb,
            fmt::format(
                "an all-reduce of {} MiB costs {:.3g} ns a byte, of {} MiB {:.3g}; smaller buckets overlap "
                "more",
                mb, cost * 1e9, kLargestBucketMb, largest * 1e9)};
  }
  return {kLargestBucketMb,
          fmt::format("an all-reduce of {} MiB costs {:.3g} ns a byte, of 1 MiB {:.3g}; smaller buckets "
                      "would pay too often for their beginning",
                      kLargestBucketMb, largest * 1e9, a_byte(1) * 1e9)};
}

double bucket_mb_for(const Group& group, const std::string& algorithm, Order order) {
  // Of the engines for GPUs nothing is known but what their carrier costs.
  const std::string_view engine = group.engine();
  if (group.size() == 1 || engine == "shm" || engine == "ipc" || engine == "nccl") return kLargestBucketMb;
  std::vector<double> mb = {kLargestBucketMb};
  if (group.rank() == 0) {
    const BucketSize choice = choose_bucket_size([&](std::size_t bytes) {
      return group.expected_seconds({.what = Collective::all_reduce,
                                     .count = bytes / sizeof(float),
                                     .options = {.algorithm = algorithm, .order = order}});
    });
    log().info("bucket_cap_mb {}: {}", choice.mb, choice.reason);
    mb[0] = choice.mb;
  }
  group.broadcast(buffer(mb), 0);
  return mb[0];
}

}  // namespace lockstep
