// What became of one step's gradients on their way, in nanoseconds of now_ns().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct BucketEvent {
  int bucket = 0;
  std::size_t bytes = 0;
  std::int64_t ready_ns = 0;    // its last gradient came
  std::int64_t start_ns = 0;    // its turn came
  std::int64_t running_ns = 0;  // its algorithm began: WorkTiming says who was there
  std::int64_t end_ns = 0;
  std::string algorithm;
};

struct ExchangeLog {
  std::vector<BucketEvent> buckets;
  // When the backward thread had nothing left to do but wait for them, and when they were there.
  std::int64_t wait_begin_ns = 0;
  std::int64_t wait_end_ns = 0;

  // Where each worker updates a part: how the updated parameters came to all, bucket by bucket, behind the
  // optimizer, which waited for them in the meantime. Empty where everybody updates everything.
  std::vector<BucketEvent> shared = {};
  std::int64_t share_begin_ns = 0;
  std::int64_t share_end_ns = 0;
};

}  // namespace lockstep
