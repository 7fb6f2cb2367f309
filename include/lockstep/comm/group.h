// A group of ranks and its collectives: the front door of `comm`.
//
//   auto world = lockstep::init();                        // comm/init.h
//   double total = world.all_reduce(loss);                // a number: the sum over all ranks
//   double mean = lockstep::mean(world, loss, samples);   // comm/mean.h
//   world.all_reduce(values, {.op = ReduceOp::avg});      // a vector, array or span, in place; a tensor with
//                                                         // parallel/tensor.h
//   std::vector<std::string> texts = world.all_gather(text);   // each of its own length
//   world.broadcast(text, 0);                             // becomes as long as rank 0's
//
// Underneath are buffers, which borrow memory:
//
//   auto memory = world.allocate(1 << 20);                // memory that peers reach directly
//   Buffer x{memory.data(), 1 << 18, DType::f32};
//   world.all_reduce(x);                                  // in place, sum, blocking
//   Work w = world.all_reduce_async(x, {.op = ReduceOp::avg});
//   w.wait();                                             // rethrows
//
// Rules that hold for every call
//  - Every rank of the group calls the same collectives in the same order with the same count, dtype,
//    op, root and algorithm. A difference is a MismatchError on every rank that names who called what.
//  - Calls of one rank run in the order in which they were made, blocking and asynchronous alike, from
//    whichever threads: each takes its place when it is made. A program whose threads call on one group
//    sees to it that the order is the same on every rank; threads with a group each (split) need not care.
//    Different groups run concurrently.
//  - Zero elements and a group of one are ordinary calls.
//  - On a device (comm/device.h) a call is put on a stream, behind what the caller's current stream holds and
//    behind the group's calls on that device before it. A blocking one returns when it is there: what the
//    caller's current stream is given afterwards comes after it. An asynchronous one: Work::wait (work.h).
//  - In place: pass the same memory as input and output (for all_gather the input is the rank's own
//    slice of the output, for reduce_scatter the output is the rank's slice of the input). Any other
//    overlap is a UsageError.
//  - Sums over ranks follow the canonical order (docs/algorithms.md) unless the algorithm says
//    otherwise: the same bits from every canonical algorithm. Of f16 and bf16 partial sums are rounded, too.
//  - Failure is sticky: once a call threw anything but UsageError, later calls on the
//    group throw the same at once. UsageError leaves the group as it was.
//  - Errors speak of ranks by their number in the world (named()); error.rank() and error.missing() are
//    numbers in this group, as rank() and root are.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/buffer.h"
#include "lockstep/comm/collective.h"
#include "lockstep/comm/memory.h"
#include "lockstep/comm/work.h"

namespace lockstep {

// The order in which sums over ranks are taken. canonical: the balanced tree over ranks, the same bits from
// every algorithm. any: whatever is fastest (the choice may then be ring).
enum class Order : unsigned char { canonical, any };

// A divisor that this rank leaves to the others, of whom at least one must say it (nobody does: 1). An
// algorithm that needs it from every rank (MPI's "blocking") is refused where it was left out, by UsageError
// on that rank alone: the others are in MPI's call by then, which no timeout ends, until that one calls too.
inline constexpr double kDivisorOfOthers = -1;

// Options of one call. Not every field matters to every collective.
struct CallOptions {
  ReduceOp op = ReduceOp::sum;
  std::string_view algorithm = {};         // empty: the cost table chooses
  std::chrono::milliseconds timeout = {};  // zero: the group's
  Order order = Order::canonical;
  // For avg: what the sum is divided by; 0: the number of ranks. Integers need a whole number. All ranks say
  // the same, or kDivisorOfOthers.
  double divisor = 0;
  // What the call is for, in words: "bucket 2 of 3". Said where a message speaks of the call: when it waits
  // for long, or too long.
  std::string_view purpose = {};
};

// A call that nobody makes, to ask about.
struct CallQuestion {
  Collective what = Collective::all_reduce;
  // Elements of the smaller of its buffers: of reduce_scatter and scatter `out`, of all others `in`; of
  // all_to_all one slice.
  std::size_t count = 0;
  DType dtype = DType::f32;
  CallOptions options = {};
};

class GroupImpl;
class LaneBoard;

// How everybody's X is gathered: Group::all_gather(x). Below for numbers, vectors and strings.
template <class X>
struct AllGather;

class Group {
 public:
  Group() = default;  // empty; every call but `operator bool` is an error
  explicit operator bool() const { return impl_ != nullptr; }

  int rank() const;
  int size() const;
  const std::string& name() const;  // "world", "world/0", …: for messages
  // What messages call one of its ranks: "rank 3", which is its rank in the world; where it has another one
  // in this group that follows: "rank 3 (1 in world/0.1)".
  std::string named(int rank) const;
  const char* engine() const;                 // "shm", "mpi", "gloo", …
  const std::vector<int>& nodes() const;      // nodes()[r]: the node that rank r runs on, counted from 0
  std::chrono::milliseconds timeout() const;  // of calls whose options give none

  // Memory that peers reach directly. A local call; only the caller allocates. On a device: what the engine
  // works on there; UsageError where it does not.
  CommMemory allocate(std::size_t bytes, Device device = {}) const;
  // Whether peers reach `data` directly, so that calls work on it where it is; of no memory where the engine
  // has none of its own (tcp, mpi, gloo).
  bool reaches(const void* data) const;

  // One block that all ranks see, zero-filled: what one writes is there for all, and who reads it while
  // another writes is the program's to say (barrier). It goes when the last rank lets go of its handle.
  // Collective, with the same size everywhere. UsageError where the ranks have no memory in common, as on
  // several machines, or over tcp and mpi; gloo's have the memory over which they met (shares_memory()).
  // On a device: for ranks that are all on the same one (shares_device()), ordered by barrier(device). It is
  // taken by the process of rank `maker`, which has to live as long as others use it.
  CommMemory allocate_shared(std::size_t bytes, Device device = {}, int maker = 0) const;
  bool shares_memory() const;
  // Whether `device` is the same one for all ranks, whatever index it has in their processes, and they have
  // memory in common there (engine ipc). Collective.
  bool shares_device(Device device) const;

  // Questions: local, cheap, nothing is sent. From any thread, while calls run.
  // How long the call should take once all ranks are there, by the cost table; 0 when the engine has none.
  double expected_seconds(const CallQuestion& call) const;
  // Why the call would be a UsageError, in words; empty when it would not.
  std::string why_refused(const CallQuestion& call) const;
  // What CallOptions::algorithm may name there.
  std::vector<std::string> algorithms(Collective what) const;
  // Whether the call would sum in canonical order: so its bits don't depend on the number of ranks. An
  // algorithm may be another engine's; one that nobody knows does not.
  bool sums_canonically(const CallQuestion& call) const;

  // Every rank's `x` becomes the reduction of all of them.
  void all_reduce(Buffer x, CallOptions options = {}) const;
  void all_reduce(ConstBuffer in, Buffer out, CallOptions options = {}) const;

  // Rank r gets the reduction of everybody's r-th slice: in.count == size() * out.count.
  void reduce_scatter(ConstBuffer in, Buffer out, CallOptions options = {}) const;

  // Everybody gets every rank's input in rank order: out.count == size() * in.count.
  void all_gather(ConstBuffer in, Buffer out, CallOptions options = {}) const;

  // Everybody's `x` becomes root's.
  void broadcast(Buffer x, int root, CallOptions options = {}) const;

  // Root's `out` becomes the reduction; elsewhere `out` is not touched and may be empty.
  void reduce(ConstBuffer in, Buffer out, int root, CallOptions options = {}) const;

  // Root's `out` gets every rank's input in rank order; elsewhere `out` may be empty.
  void gather(ConstBuffer in, Buffer out, int root, CallOptions options = {}) const;

  // Rank r gets root's r-th slice; elsewhere than on root `in` may be empty.
  void scatter(ConstBuffer in, Buffer out, int root, CallOptions options = {}) const;

  // Slice j of rank i's input becomes slice i of rank j's output; in.count == out.count.
  void all_to_all(ConstBuffer in, Buffer out, CallOptions options = {}) const;

  void barrier(CallOptions options = {}) const;
  // Of streams: what a rank's current stream is given behind it comes after what every rank's held before it.
  // No host waits for a stream. UsageError where the engine has none there.
  void barrier(Device device, CallOptions options = {}) const;

  // Point to point. Messages between two ranks arrive in order; the counts and types of a send and its
  // receive must agree. send returns when `x` may be reused.
  void send(ConstBuffer x, int to, CallOptions options = {}) const;
  void recv(Buffer x, int from, CallOptions options = {}) const;

  // The same, asynchronous.
  [[nodiscard]] Work all_reduce_async(Buffer x, CallOptions options = {}) const;
  [[nodiscard]] Work all_reduce_async(ConstBuffer in, Buffer out, CallOptions options = {}) const;
  [[nodiscard]] Work reduce_scatter_async(ConstBuffer in, Buffer out, CallOptions options = {}) const;
  [[nodiscard]] Work all_gather_async(ConstBuffer in, Buffer out, CallOptions options = {}) const;
  [[nodiscard]] Work broadcast_async(Buffer x, int root, CallOptions options = {}) const;
  [[nodiscard]] Work reduce_async(ConstBuffer in, Buffer out, int root, CallOptions options = {}) const;
  [[nodiscard]] Work gather_async(ConstBuffer in, Buffer out, int root, CallOptions options = {}) const;
  [[nodiscard]] Work scatter_async(ConstBuffer in, Buffer out, int root, CallOptions options = {}) const;
  [[nodiscard]] Work all_to_all_async(ConstBuffer in, Buffer out, CallOptions options = {}) const;
  [[nodiscard]] Work barrier_async(CallOptions options = {}) const;
  [[nodiscard]] Work send_async(ConstBuffer x, int to, CallOptions options = {}) const;
  [[nodiscard]] Work recv_async(Buffer x, int from, CallOptions options = {}) const;

  // The same with what holds its elements itself (AsBuffer in buffer.h): vectors, arrays, spans, tensors.
  // What is written is no temporary. For asynchronous calls, whose memory must stay: buffer(x).
  template <OutElements X>
  void all_reduce(X&& x, CallOptions o = {}) const {
    all_reduce(to<X>(x, reducing("all_reduce", o)), o);
  }
  template <InElements I, OutElements O>
  void all_reduce(const I& in, O&& out, CallOptions o = {}) const {
    const BufferUse use = reducing("all_reduce", o);
    all_reduce(from(in, use), to<O>(out, use), o);
  }
  template <InElements I, OutElements O>
  void reduce_scatter(const I& in, O&& out, CallOptions o = {}) const {
    const BufferUse use = reducing("reduce_scatter", o);
    reduce_scatter(from(in, use), to<O>(out, use), o);
  }
  template <InElements I, OutElements O>
  void all_gather(const I& in, O&& out, CallOptions o = {}) const {
    all_gather(from(in, {"all_gather"}), to<O>(out, {"all_gather"}), o);
  }
  template <OutElements X>
  void broadcast(X&& x, int root, CallOptions o = {}) const {
    broadcast(to<X>(x, {"broadcast"}), root, o);
  }
  template <InElements I, OutElements O>
  void reduce(const I& in, O&& out, int root, CallOptions o = {}) const {
    const BufferUse use = reducing("reduce", o);
    reduce(from(in, use), rank() == root ? to<O>(out, use) : Buffer{}, root, o);
  }
  template <InElements I, OutElements O>
  void gather(const I& in, O&& out, int root, CallOptions o = {}) const {
    gather(from(in, {"gather"}), rank() == root ? to<O>(out, {"gather"}) : Buffer{}, root, o);
  }
  template <InElements I, OutElements O>
  void scatter(const I& in, O&& out, int root, CallOptions o = {}) const {
    scatter(rank() == root ? from(in, {"scatter"}) : ConstBuffer{}, to<O>(out, {"scatter"}), root, o);
  }
  template <InElements I, OutElements O>
  void all_to_all(const I& in, O&& out, CallOptions o = {}) const {
    all_to_all(from(in, {"all_to_all"}), to<O>(out, {"all_to_all"}), o);
  }
  template <InElements X>
  void send(const X& x, int receiver, CallOptions o = {}) const {
    send(from(x, {"send"}), receiver, o);
  }
  template <OutElements X>
  void recv(X&& x, int sender, CallOptions o = {}) const {
    recv(to<X>(x, {"recv"}), sender, o);
  }

  // One number of each rank: returns the reduction.
  template <class T>
  requires std::is_arithmetic_v<T>
  [[nodiscard]] T all_reduce(T x, CallOptions o = {}) const {
    using E = ElementFor<T>;
    static_assert(!std::is_void_v<E>, "all_reduce of a number: cast it to std::int64_t, int or double first");
    E element = static_cast<E>(x);
    all_reduce(Buffer{&element, 1, kDTypeOf<E>}, o);
    return static_cast<T>(element);
  }

  // Everybody's `x` in rank order, each of its own length: a number gives a vector<T>, a vector<T> a
  // vector<vector<T>>, a string a vector<string>, a tensor (parallel/tensor.h) a vector of tensors. Two
  // rounds, the lengths and the elements; each rank receives size() times the longest.
  template <class X>
  requires requires { sizeof(AllGather<X>); }
  [[nodiscard]] auto all_gather(const X& x, CallOptions o = {}) const {
    return AllGather<X>::call(*this, x, o);
  }

  // Everybody's text becomes root's, whatever it was.
  void broadcast(std::string& text, int root, CallOptions options = {}) const;

  // A new group of the ranks that gave the same colour, ordered by (key, rank). A negative colour
  // joins none and gets an empty Group. Collective over this group.
  Group split(int colour, int key = 0) const;
  // One group per node.
  Group split_by_node() const;

  // Where loaders and strategies of this group meet (lane_board.h); shared by all copies of the handle.
  std::shared_ptr<LaneBoard> lane_board() const;

 private:
  friend class GroupImpl;
  explicit Group(std::shared_ptr<GroupImpl> impl) : impl_(std::move(impl)) {}
  GroupImpl& impl() const;  // throws UsageError when empty
  static BufferUse reducing(const char* call, const CallOptions& o) { return {call, true, o.op}; }
  template <class X>
  static ConstBuffer from(const X& x, const BufferUse& use) {
    return AsBuffer<X>::in(x, use);
  }
  template <class X>
  static Buffer to(std::remove_reference_t<X>& x, BufferUse use) {
    use.temporary = !std::is_lvalue_reference_v<X>;
    return AsBuffer<std::remove_cvref_t<X>>::out(x, use);
  }

  std::shared_ptr<GroupImpl> impl_;
};

// Everybody's elements in rank order, each padded to the longest.
struct GatheredElements {
  std::vector<std::size_t> counts;  // of elements, by rank
  std::size_t longest = 0;
  std::size_t stride = 0;        // bytes from one rank's to the next
  std::vector<std::byte> bytes;  // counts.size() × stride

  const std::byte* begin_of(std::size_t rank) const { return bytes.data() + rank * stride; }
};
// Collective. Counts may differ, types may not.
GatheredElements gather_elements(const Group& group, ConstBuffer own, CallOptions options = {});

template <class T>
requires std::is_arithmetic_v<T>
struct AllGather<T> {
  static std::vector<T> call(const Group& group, T x, const CallOptions& o) {
    using E = ElementFor<T>;
    static_assert(!std::is_void_v<E>, "all_gather of a number: cast it to std::int64_t, int or double first");
    const E own = static_cast<E>(x);
    std::vector<E> all(static_cast<std::size_t>(group.size()));
    group.all_gather(ConstBuffer(&own, 1, kDTypeOf<E>), buffer(all), o);
    return std::vector<T>(all.begin(), all.end());
  }
};

template <class T>
requires kIsElement<T>
struct AllGather<std::vector<T>> {
  static std::vector<std::vector<T>> call(const Group& group, const std::vector<T>& x, const CallOptions& o) {
    const GatheredElements all = gather_elements(group, buffer(x), o);
    std::vector<std::vector<T>> lists;
    for (std::size_t r = 0; r < all.counts.size(); ++r) {
      lists.emplace_back(all.counts[r]);
      if (all.counts[r] > 0) std::memcpy(lists[r].data(), all.begin_of(r), all.counts[r] * sizeof(T));
    }
    return lists;
  }
};

template <>
struct AllGather<std::string> {
  static std::vector<std::string> call(const Group& group, const std::string& x, const CallOptions& options);
};

}  // namespace lockstep
