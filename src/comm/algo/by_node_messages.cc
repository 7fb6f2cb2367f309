// by-node inside nodes whose ranks share no memory: each rank's share moves by the node's own collectives.
// M nodes of L ranks each.
#include <cstring>

#include "comm/algo/by_node.h"

namespace lockstep {
namespace {

// A sum of the node, not yet divided.
Call sum_inside(const Call& told, const void* in, void* out, std::size_t count) {
  Call part = part_of_call(told);
  part.what = Collective::reduce_scatter;
  part.in = in;
  part.out = out;
  part.count = count;
  if (part.op == ReduceOp::avg) part.op = ReduceOp::sum;
  return part;
}

Call gather_inside(const Call& call, const void* in, void* out, std::size_t count) {
  Call part = part_of_call(call);
  part.what = Collective::all_gather;
  part.in = in;
  part.out = out;
  part.count = count;
  return part;
}

// The call as the node knows it: its ranks have met and agree.
Call opened(Stage& stage) {
  Call told = stage.call;
  told.whole = &stage.call.shown();
  told.divisor = stage.levels().open_inside(stage.call);
  return told;
}

}  // namespace

void by_messages::barrier(Stage& stage) {
  Levels& levels = stage.levels();
  levels.run_inside(part_of_call(stage.call));
  if (levels.place() == 0) levels.run_across(part_of_call(stage.call));
  levels.run_inside(part_of_call(stage.call));
}

// The j-th of each node has share j of its node, then of all; then they swap.
void by_messages::all_reduce(Stage& stage) {
  Levels& levels = stage.levels();
  const Call told = opened(stage);
  const auto ranks = static_cast<std::size_t>(levels.parts());
  const std::size_t share = (told.count + ranks - 1) / ranks;
  const std::size_t share_bytes = share * size_of(told.dtype);
  std::byte* const given = stage.scratch.take((ranks + 1) * share_bytes);
  std::byte* const sum = given + ranks * share_bytes;
  std::memcpy(given, told.in, told.bytes());
  std::memset(given + told.bytes(), 0, ranks * share_bytes - told.bytes());
  levels.run_inside(sum_inside(told, given, sum, share));
  levels.run_across(sum_across(stage, told, sum, sum, share));
  levels.run_inside(gather_inside(told, sum, given, share));
  std::memcpy(stage.out(), given, told.bytes());
}

// Slices in the order of columns, so that those for the j-th ranks of all nodes are one.
void by_messages::reduce_scatter(Stage& stage) {
  Levels& levels = stage.levels();
  const Call told = opened(stage);
  const auto& members = levels.members();
  const auto ranks = static_cast<std::size_t>(levels.parts());
  const std::size_t nodes = members.size();
  const std::size_t slice = told.bytes();
  std::byte* const given = stage.scratch.take((ranks + 1) * nodes * slice);
  std::byte* const sums = given + ranks * nodes * slice;
  for (std::size_t j = 0; j < ranks; ++j)
    for (std::size_t m = 0; m < nodes; ++m)
      std::memcpy(given + (j * nodes + m) * slice,
                  stage.in() + static_cast<std::size_t>(members[m][j]) * slice, slice);
  levels.run_inside(sum_inside(told, given, sums, nodes * told.count));
  levels.run_across(sum_across(stage, told, sums, stage.out(), told.count));
}

void by_messages::all_gather(Stage& stage) {
  Levels& levels = stage.levels();
  const Call told = opened(stage);
  const auto& members = levels.members();
  const auto ranks = static_cast<std::size_t>(levels.parts());
  const std::size_t nodes = members.size();
  const std::size_t slice = told.bytes();
  std::byte* const column = stage.scratch.take((ranks + 1) * nodes * slice);
  std::byte* const all = column + nodes * slice;
  Call across = part_of_call(told);
  across.out = column;
  levels.run_across(across);
  levels.run_inside(gather_inside(told, column, all, nodes * told.count));
  for (std::size_t j = 0; j < ranks; ++j)
    for (std::size_t m = 0; m < nodes; ++m)
      std::memcpy(stage.out() + static_cast<std::size_t>(members[m][j]) * slice,
                  all + (j * nodes + m) * slice, slice);
}

}  // namespace lockstep
