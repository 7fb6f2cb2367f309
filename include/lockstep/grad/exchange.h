// What happens to a bucket of gradients when it is full, as a value: an all-reduce, a reduce-scatter,
// nothing, or a program's own.
//
//   DataParallel ddp(model, world, {.exchange = bf16_exchange});          // compress/bf16.h
//
//   Exchange own(Exchange::Leaves) {                                      // one of a program's own
//     return {.name = "halves", .run = [](const Bucket& bucket) {
//       return bucket.group.all_reduce_async(bucket.data,
//                                            {.op = ReduceOp::avg, .divisor = 2 * bucket.divisor});
//     }};
//   }
//   DataParallel ddp(model, world, {.exchange = own});
//
// An exchange is called on every rank, for the same buckets in the same order, on the thread that runs
// backward, while backward goes on: it begins something and returns. Behind it are Group's asynchronous calls
// and Work::then, which goes on with them on the group's own thread. Several buckets are under way at a time;
// what a copy of a Bucket points to stays until the Work that was returned is done.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/comm/group.h"

namespace lockstep {

// Where the gradient of one parameter lies in a bucket. Between two there may be gaps.
struct BucketTensor {
  std::string name;           // of the parameter
  std::size_t parameter = 0;  // its place in the list of parameters
  std::size_t offset = 0;     // elements
  std::size_t count = 0;
};

// A full bucket. It lies in comm memory, and stays there until its exchange is done.
struct Bucket {
  int index = 0;
  Buffer data;  // its count is a multiple of the group's size
  // What the sum over all ranks is divided by: the same on every rank, on one without gradients (whose data
  // is negative zeros) too.
  double divisor = 1;
  std::span<const BucketTensor> tensors = {};
  int layout = 0;  // counts the layouts: after a new one the same tensors lie elsewhere, in other buckets
  Group group = {};
  std::string_view purpose = {};  // "bucket 2 of 3 (fc.weight … fc.bias)", for messages
};
using BucketHook = std::function<Work(const Bucket& bucket)>;

// This rank's part of a bucket: the ranks' parts are equally long, and together they are the bucket.
Buffer own_part(const Bucket& bucket);

struct Exchange {
  // What a bucket holds when its exchange is done.
  enum class Leaves : unsigned char {
    everything,  // all of it is the result
    own_part,    // this rank's part is, the rest means nothing
  };
  using State = std::map<std::string, torch::Tensor>;

  std::string name;  // for messages
  // Makes the sum over all ranks divided by the divisor of what the bucket holds, in place.
  BucketHook run;
  Leaves leaves = Leaves::everything;

  // What it remembers from step to step, and takes back. Named by parameter ("residual/fc.weight") and shaped
  // as that, so that it outlives layouts, and the same on every rank, so that it outlives numbers of workers:
  // what ranks have of their own is added up or gathered first. A run whose sum is cut anew goes on with
  // other bits than one that was not stopped; gathered under a name a rank, with the same ones where as many
  // go on. Collective. Left empty, the two of them: it remembers nothing.
  std::function<State()> state = {};
  std::function<void(const State&)> load = {};

  // How long a bucket of so many elements is expected to take, in seconds; 0: not known. Left empty: never.
  std::function<double(const Group& group, std::size_t count, DType dtype)> expected_seconds = {};
};

// In which type 16-bit gradients are added up, over lanes and workers, and travel: in theirs, or in f32,
// which is twice the bytes and rounds nothing. Their grad() is f32 then, and they are updated by one of our
// optimizers with master weights.
enum class ReducePrecision : unsigned char { same, f32 };

struct ExchangeOptions {
  std::string algorithm = {};  // empty: the cost table chooses
  Order order = Order::canonical;
};

// Every rank has all of the mean.
Exchange all_reduce_exchange(ExchangeOptions options = {});
// Every rank has its own part of it: about half the bytes between ranks without shared memory.
Exchange reduce_scatter_exchange(ExchangeOptions options = {});
// Every rank keeps what it has: its own sum, not divided by anything.
Exchange no_exchange();

}  // namespace lockstep
