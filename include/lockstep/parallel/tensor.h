// Tensors in collectives, as everything else that holds elements (comm/group.h):
//
//   world.all_reduce(tensor);                      // in place; {.op = ReduceOp::avg}: the mean
//   world.broadcast(tensor, 0);
//   world.all_gather(part, whole);                 // whole.numel() == size × part.numel()
//   auto parts = world.all_gather(part);           // a vector of tensors, of different lengths: below
//   Work w = world.all_reduce_async(lockstep::buffer(tensor));   // the tensor lives until it is done
//
// A tensor is dense, contiguous, on a device that the group's engine works on (the CPU; comm/group.h says
// when a call on another one is done), and of a type that collectives know: Double, Float, Half, BFloat16,
// Long, Int, Char, Byte; Bool too, where it stays one (no sum, no mean: max is "any", min is "all"). Anything
// else is a UsageError that says what to give instead. Ranks whose tensors have different types or numbers of
// elements get the MismatchError of every collective. A rank's shape is its own otherwise: only the elements
// travel, in order. What is written may be a temporary that shares another's memory (x.view(-1), x[3]), not
// one that nobody else holds: x.contiguous() is a copy where x is not.
//
// Autograd sees none of it: the result has no history. It counts as a change in place, so that a backward
// that needs the old values says so.
#pragma once

#include <torch/types.h>

#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep {

// For calls that take a Buffer. Throws UsageError as above.
Buffer buffer(const torch::Tensor& tensor);
Buffer buffer(torch::Tensor&& tensor);

template <>
struct AsBuffer<torch::Tensor> {
  static constexpr bool kIsHandle = true;
  static ConstBuffer in(const torch::Tensor& tensor, const BufferUse& use);
  static Buffer out(const torch::Tensor& tensor, const BufferUse& use);
};

// Everybody's tensor in rank order, where only the first dimension may differ (0 rows are fine): torch::cat
// of it is what all ranks have together. Throws MismatchError, on every rank, naming two that differ
// otherwise.
template <>
struct AllGather<torch::Tensor> {
  static std::vector<torch::Tensor> call(const Group& group, const torch::Tensor& tensor,
                                         const CallOptions& options);
};

}  // namespace lockstep
