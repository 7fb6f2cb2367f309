// How large buckets should be. Small ones leave earlier and hide more of their exchange behind backward;
// large ones pay for fewer beginnings. Where the links are known, the answer is the smallest size at which
// beginnings hardly count any more.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "lockstep/comm/group.h"

namespace lockstep {

// What shared memory gets, where smaller buckets gain nothing, and the largest that is ever chosen.
inline constexpr double kLargestBucketMb = 25;

struct BucketSize {
  double mb = kLargestBucketMb;
  std::string reason;  // "an all-reduce of 4 MiB costs 8.9 ns a byte, of 25 MiB 8.6; …"
};

// `seconds(bytes)`: what an all-reduce is expected to take; 0 when that is not known. Gives the smallest of
// 1, 2, 4, 8, 16 and 25 MiB whose time a byte is within a tenth of that at 25 MiB.
BucketSize choose_bucket_size(const std::function<double(std::size_t bytes)>& seconds);

// The group's choice, rank 0's on every rank; logged with its reason. Collective, unless the group is one
// machine's shared memory. `algorithm` and `order` as in CallOptions.
double bucket_mb_for(const Group& group, const std::string& algorithm, Order order);

}  // namespace lockstep
