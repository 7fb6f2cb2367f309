// Gathers gradients in buckets and has each bucket reduced as soon as it is full, while backward goes on.
//
//   Reducer reducer(parameters, group, options);
//   loss.backward();         // hooks fill buckets; full ones leave in order; its end waits for all of them
//
// Buckets lie in comm memory; after the exchange every grad() is a view into its bucket. They follow the
// reverse order of registration at first, and after the first exchange the order in which gradients really
// came (rank 0's, broadcast).
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/grad/gradient_source.h"

namespace lockstep {

// A full bucket. A hook makes the sum over all ranks divided by `divisor` of what `data` holds, in place.
struct Bucket {
  int index = 0;
  Buffer data;
  double divisor = 1;
};
using BucketHook = std::function<Work(const Bucket& bucket)>;

// What became of one bucket in one exchange, in nanoseconds of now_ns().
struct BucketEvent {
  int bucket = 0;
  std::size_t bytes = 0;
  std::int64_t ready_ns = 0;    // its last gradient came
  std::int64_t start_ns = 0;    // its turn came
  std::int64_t running_ns = 0;  // all ranks were there, data began to move
  std::int64_t end_ns = 0;
  std::string algorithm;
};

struct ReducerOptions {
  std::size_t bucket_bytes = std::size_t{25} << 20;
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  bool find_unused_parameters = true;
  BucketHook hook = {};        // empty: all_reduce
  std::string algorithm = {};  // of the all-reduce; empty: the cost table chooses
  Order order = Order::canonical;
  // Called on the backward thread when all gradients of the step have come, before and after their exchange
  // is awaited: for what travels along. `idle`: this worker takes part with nothing.
  std::function<void(bool idle)> before_wait = {};
  std::function<void()> after_wait = {};
};

class Reducer {
 public:
  Reducer(std::vector<NamedTensor> parameters, Group group, ReducerOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Whether backward exchanges gradients (the default) or only adds them up here.
  void set_sync(bool on);
  bool sync() const;

  // Lanes. begin_lane before each lane's forward; `position` counts this worker's lanes of the step from 0.
  // Gradients are scaled by weight, added up along the tree, and divided by total_weight.
  struct LanePart {
    int position = 0;
    double weight = 1;
    double total_weight = 1;
    bool last = true;
  };
  void begin_lane(const LanePart& part);

  // Ends the step's exchange; begins it first when no backward did. A worker without any gradient in this
  // step takes part with nothing.
  void synchronize();
  // The means have been used: what comes next belongs to the next step.
  void end_step();
  // Forgets an unfinished step, on every rank.
  void reset();

  const std::vector<NamedTensor>& parameters() const;
  // The last exchange, bucket by bucket, and when its waiting began and ended on the backward thread.
  const std::vector<BucketEvent>& events() const;
  std::int64_t wait_begin_ns() const;
  std::int64_t wait_end_ns() const;
  std::int64_t exchanges() const;  // so far
  int bucket_of(std::size_t parameter) const;
  // Comm memory held for gradients, in bytes.
  std::size_t bucket_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
