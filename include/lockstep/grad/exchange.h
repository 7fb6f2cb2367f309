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
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/grad/gradient_source.h"
#include "lockstep/grad/subtrees.h"

namespace lockstep {

// Where the gradient of one parameter lies in a bucket. Between two there may be gaps.
struct BucketTensor {
  std::string name;           // of the parameter
  std::size_t parameter = 0;  // its place in the list of parameters
  std::size_t offset = 0;     // elements
  std::size_t count = 0;
};

// One subtree's sum of lanes, or this worker's part of it, laid out as the bucket.
struct SubtreeSum {
  int subtree = 0;
  void* data = nullptr;
  // One a tensor of the bucket: did a lane have a gradient? Where none did the elements mean nothing.
  std::vector<char> has = {};
};

// A full bucket. It lies in comm memory, and stays there until its exchange is done.
struct Bucket {
  int index = 0;
  Buffer data;  // its count is a multiple of the group's size
  // Where this rank's part of the result is to be (Exchange::writes_own); without data: in its place in
  // `data`.
  Buffer own = {};
  // What the sum over all ranks is divided by: the same on every rank, on one without gradients (whose data
  // is negative zeros) too.
  double divisor = 1;
  std::span<const BucketTensor> tensors = {};
  int layout = 0;  // counts the layouts: after a new one the same tensors lie elsewhere, in other buckets
  Group group = {};
  std::string_view purpose = {};          // "bucket 2 of 3 (fc.weight … fc.bias)", for messages
  std::optional<std::int64_t> step = {};  // of the run, where it is made of lanes
  // Where the exchange has cut the lanes' tree (Exchange::bind): the sums of this worker's subtrees, in
  // order, not added to each other. The first is `data` itself, which then is that one sum alone, and is
  // always there: of a worker that had no lane in this step, or carries no subtree, with `has` all 0 and
  // negative zeros. Later ones of which it had no lane are missing; they lie in private memory. Where several
  // workers carry one subtree (SubtreeShare::workers) each has its part: to add those up is the exchange's to
  // do. All may be written to until the exchange is done.
  std::vector<SubtreeSum> sums = {};
  bool may_be_void = false;  // the step may be left out: Exchange::leave_out
};
using BucketHook = std::function<Work(const Bucket& bucket)>;

// This rank's part of a bucket: the ranks' parts are equally long, and together they are the bucket.
Buffer own_part(const Bucket& bucket);
// Where its part of the result is when the exchange is done: Bucket::own, or that.
Buffer own_result(const Bucket& bucket);

// What an exchange that sends less has made of the last step, on this rank.
struct ExchangeFigures {
  double dense_bytes = 0;  // of the gradients as they are
  double sent_bytes = 0;   // of what its calls were given in their place
  double error = 0;        // |sent - meant| / |meant| of its subtrees' sums; NaN: not measured in this step
  std::string about = {};  // which method, and why
  std::vector<std::string> history = {};  // how that came about, where it changes: a line a change
};

// In which type 16-bit gradients are added up, over lanes and workers, and travel: in theirs, or in f32,
// which is twice the bytes and rounds nothing. Their grad() is f32 then, and they are updated by one of our
// optimizers with master weights.
enum class ReducePrecision : unsigned char { same, f32 };

// What an exchange shares with its optimizer where momenta travel in place of gradients (1-bit Adam:
// optim/onebit_adam.h). It leaves means of gradients, until the optimizer has given it the momenta that it
// has made of them; from then on the momenta after each step, the same on every rank.
class MomentumExchange {
 public:
  virtual ~MomentumExchange() = default;

  virtual double beta1() const = 0;
  // Have momenta begun?
  virtual bool begun() const = 0;
  // Then: is what it leaves of the i-th parameter its momentum? Else its gradient, which travels as it is.
  virtual bool carries(std::size_t parameter) const = 0;
  // Has the last exchange ended the dense phase, so that momenta are to begin?
  virtual bool is_due() const = 0;
  // They begin: first take(), for every parameter, with all of its momentum, then begin_momenta(). On every
  // rank, between two exchanges.
  virtual void take(std::size_t parameter, const torch::Tensor& momentum) = 0;
  virtual void begin_momenta() = 0;
};

struct Exchange {
  // What a bucket holds when its exchange is done.
  enum class Leaves : unsigned char {
    everything,  // all of it is the result
    own_part,    // this rank's part is, the rest means nothing
  };
  using State = std::map<std::string, torch::Tensor>;

  std::string name;  // for messages
  // Makes the sum over all ranks divided by the divisor of what the bucket holds (`data`; where the tree is
  // cut, `sums`), and leaves it in `data`.
  BucketHook run;
  Leaves leaves = Leaves::everything;
  // This rank's part of the result goes straight to Bucket::own where that is given: nobody copies it out of
  // a bucket whose memory the next one gets.
  bool writes_own = false;
  // Of one rank and a divisor of one it leaves a bucket as it is: on a device, where copies cost time, the
  // gradients then stay where libtorch has put them, and buckets come without data.
  bool nothing_alone = false;

  // What it remembers from step to step, and takes back. Named by parameter ("residual/fc.weight") and shaped
  // as that, so that it outlives layouts, and the same on every rank, so that it outlives numbers of workers:
  // what ranks have of their own is added up or gathered first. A run whose sum is cut anew goes on with
  // other bits than one that was not stopped; gathered under a name a rank, with the same ones where as many
  // go on. Collective. Left empty, the two of them: it remembers nothing.
  std::function<State()> state = {};
  std::function<void(const State&)> load = {};

  // The step whose buckets came last, which may_be_void, is not taken, or was given up (Reducer::reset): what
  // is remembered becomes what it was before. On every rank, before the next step's first bucket; twice is
  // once. Left empty: nothing to do.
  std::function<void()> leave_out = {};

  // Told what is trained by which group, and of which type its gradients are, before the first bucket and
  // whenever that changes; it says where the lanes' tree is cut. Collective. Left empty: nowhere.
  std::function<Subtrees(const std::vector<NamedTensor>& parameters, ReducePrecision precision,
                         const Group& group)>
      bind = {};

  // Of the last step; left empty: it sends what there is.
  std::function<ExchangeFigures()> figures = {};

  // What of it never begins in a run of so many steps, since its first ones travel as they are: in words.
  // Empty: nothing. Left empty: never.
  std::function<std::string(std::int64_t steps)> never_begins = {};

  // Where momenta travel in place of gradients; null: they don't. The exchange's own, and of its one model.
  std::shared_ptr<MomentumExchange> momenta = {};

  // How long a bucket of so many elements is expected to take, in seconds; 0: not known. Left empty: never.
  std::function<double(const Group& group, std::size_t count, DType dtype)> expected_seconds = {};
};

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
