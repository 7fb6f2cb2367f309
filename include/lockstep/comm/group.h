// A group of ranks and its collectives: the front door of `comm`.
//
//   auto world = lockstep::init();                    // comm/init.h
//   auto memory = world.allocate(1 << 20);            // memory that peers reach directly
//   Buffer x{memory.data(), 1 << 18, DType::f32};
//   world.all_reduce(x);                              // in place, sum, blocking
//   Work w = world.all_reduce_async(x, {.op = ReduceOp::avg});
//   w.wait();                                         // rethrows
//
// Rules that hold for every call
//  - Every rank of the group calls the same collectives in the same order with the same count, dtype,
//    op, root and algorithm. A difference is a MismatchError on every rank that names who called what.
//  - Calls of one rank run in the order in which they were made, blocking and asynchronous alike.
//    A group is used from one thread at a time; different groups run concurrently.
//  - Zero elements and a group of one are ordinary calls.
//  - In place: pass the same memory as input and output (for all_gather the input is the rank's own
//    slice of the output, for reduce_scatter the output is the rank's slice of the input). Any other
//    overlap is a UsageError.
//  - Sums over ranks follow the canonical order (docs/algorithms.md) unless the algorithm says
//    otherwise: the same bits from every canonical algorithm. f16 and bf16 add up in f32 and round once.
//  - Failure is sticky: once a call threw anything but UsageError, later calls on the
//    group throw the same at once. UsageError leaves the group as it was.
//  - Errors speak of ranks by their number in the world (named()); error.rank() and error.missing() are
//    numbers in this group, as rank() and root are.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/buffer.h"
#include "lockstep/comm/memory.h"
#include "lockstep/comm/work.h"

namespace lockstep {

// The order in which sums over ranks are taken. canonical: the balanced tree over ranks, the same bits from
// every algorithm. any: whatever is fastest (the choice may then be ring).
enum class Order : unsigned char { canonical, any };

// A divisor that this rank leaves to the others, of whom at least one must say it (nobody does: 1).
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

class GroupImpl;
class LaneBoard;

class Group {
 public:
  Group() = default;  // empty; every call but `operator bool` is an error
  explicit Group(std::shared_ptr<GroupImpl> impl) : impl_(std::move(impl)) {}
  explicit operator bool() const { return impl_ != nullptr; }

  int rank() const;
  int size() const;
  const std::string& name() const;  // "world", "world/0", …: for messages
  // What messages call one of its ranks: "rank 3", which is its rank in the world; where it has another one
  // in this group that follows: "rank 3 (1 in world/0.1)".
  std::string named(int rank) const;
  const char* engine() const;             // "shm", "mpi", "gloo", …
  const std::vector<int>& nodes() const;  // nodes()[r]: the node that rank r runs on, counted from 0
  std::chrono::milliseconds timeout() const;  // of calls whose options give none

  // Memory that peers reach directly. A local call; only the caller allocates.
  CommMemory allocate(std::size_t bytes) const;

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

  // Point to point. Messages between two ranks arrive in order; the counts and types of a send and its
  // receive must agree. send returns when `x` may be reused.
  void send(ConstBuffer x, int to, CallOptions options = {}) const;
  void recv(Buffer x, int from, CallOptions options = {}) const;

  // The same, asynchronous.
  Work all_reduce_async(Buffer x, CallOptions options = {}) const;
  Work all_reduce_async(ConstBuffer in, Buffer out, CallOptions options = {}) const;
  Work reduce_scatter_async(ConstBuffer in, Buffer out, CallOptions options = {}) const;
  Work all_gather_async(ConstBuffer in, Buffer out, CallOptions options = {}) const;
  Work broadcast_async(Buffer x, int root, CallOptions options = {}) const;
  Work reduce_async(ConstBuffer in, Buffer out, int root, CallOptions options = {}) const;
  Work gather_async(ConstBuffer in, Buffer out, int root, CallOptions options = {}) const;
  Work scatter_async(ConstBuffer in, Buffer out, int root, CallOptions options = {}) const;
  Work all_to_all_async(ConstBuffer in, Buffer out, CallOptions options = {}) const;
  Work barrier_async(CallOptions options = {}) const;
  Work send_async(ConstBuffer x, int to, CallOptions options = {}) const;
  Work recv_async(Buffer x, int from, CallOptions options = {}) const;

  // A new group of the ranks that gave the same colour, ordered by (key, rank). A negative colour
  // joins none and gets an empty Group. Collective over this group.
  Group split(int colour, int key = 0) const;
  // One group per node.
  Group split_by_node() const;

  // Where loaders and strategies of this group meet (lane_board.h); shared by all copies of the handle.
  std::shared_ptr<LaneBoard> lane_board() const;

  GroupImpl& impl() const;  // for the rooms above; throws UsageError when empty

 private:
  std::shared_ptr<GroupImpl> impl_;
};

}  // namespace lockstep
