// by-node inside nodes whose ranks reach each other's memory. Buffers that they can't reach go through a room
// that they can.
#include <cstring>

#include "comm/algo/by_node.h"
#include "comm/call/range.h"

namespace lockstep {
namespace {

// Part `own` of everybody on this node, then of all nodes; in the own output. In place, only this rank reads
// its own part of its own input.
void reduce_own_part(Stage& stage, const Reach& reach, const Call& call, Range own) {
  const std::size_t element = size_of(call.dtype);
  void* const sum = static_cast<std::byte*>(call.out) + own.begin * element;
  const auto locals = stage.levels().members()[static_cast<std::size_t>(stage.levels().node())].size();
  std::vector<const void*> ins;
  for (std::size_t r = 0; r < locals; ++r)
    ins.push_back(static_cast<const std::byte*>(reach.in(static_cast<int>(r))) + own.begin * element);
  kernel::reduce_tree({&sum, 1}, ins, own.count(), kernel::partial({.dtype = call.dtype, .op = call.op}));
  stage.levels().run_across(sum_across(stage, call, sum, sum, own.count()));
}

// What the node's ranks have for the ranks of this one's column, added up, slot by slot.
void add_slices(const Stage& stage, const Reach& reach, const Column& column, std::byte* sums) {
  const Call& call = stage.call;
  const auto locals = stage.levels().members()[static_cast<std::size_t>(stage.levels().node())].size();
  std::vector<const void*> ins(locals);
  for (std::size_t m = 0; m < column.nodes(); ++m)
    for (std::size_t k = 0; k < column.slots(); ++k, sums += call.bytes()) {
      const int whose = column.rank(m, k);
      if (whose < 0) {
        std::memset(sums, 0, call.bytes());
        continue;
      }
      for (std::size_t r = 0; r < locals; ++r)
        ins[r] = static_cast<const std::byte*>(reach.in(static_cast<int>(r))) +
                 static_cast<std::size_t>(whose) * call.bytes();
      void* const sum = sums;
      kernel::reduce_tree({&sum, 1}, ins, call.count, kernel::partial({.dtype = call.dtype, .op = call.op}));
    }
}

}  // namespace

void by_memory::barrier(Stage& stage) {
  Levels& levels = stage.levels();
  levels.inside(stage.call, [&](Reach& reach, const Call&) {
    if (levels.place() == 0) levels.run_across(part_of_call(stage.call));
    reach.barrier();
  });
}

void by_memory::all_reduce(Stage& stage) {
  const Call& call = stage.call;
  Levels& levels = stage.levels();
  const bool staged = !levels.reaches(call.in) || !levels.reaches(call.out);
  Call reachable = call;
  reachable.whole = &call.shown();
  if (staged) {
    std::byte* const room = levels.room(call.bytes());
    std::memcpy(room, call.in, call.bytes());
    reachable.in = room;
    reachable.out = room;
  }
  levels.inside(reachable, [&](Reach& reach, const Call& told) {
    const std::size_t element = size_of(call.dtype);
    const auto part = [&](int j) { return part_of(call.count, levels.parts(), j, element); };
    const int place = levels.place();
    if (place < levels.parts() && part(place).count() > 0) reduce_own_part(stage, reach, told, part(place));
    reach.barrier();
    for (int j = 0; j < levels.parts(); ++j) {
      if (j == place && !staged) continue;
      const std::size_t at = part(j).begin * element;
      std::memcpy(stage.out() + at, static_cast<const std::byte*>(reach.out(j)) + at,
                  part(j).count() * element);
    }
    reach.barrier();  // nobody changes its output before all have read it
  });
}

void by_memory::reduce_scatter(Stage& stage) {
  const Call& call = stage.call;
  Levels& levels = stage.levels();
  const int place = levels.place();
  const int parts = levels.parts();
  const Column column(levels, place % parts);
  const bool equal = nodes_are_equal(levels);
  const bool staged = !levels.reaches(call.in);
  const std::size_t in_bytes = call.bytes() * static_cast<std::size_t>(stage.size());
  Call reachable = call;
  reachable.whole = &call.shown();
  if (staged || !equal) {
    std::byte* const room =
        levels.room((staged ? in_bytes : 0) + (equal ? 0 : column.slots() * call.bytes()));
    if (staged) {
      std::memcpy(room, call.in, in_bytes);
      reachable.in = room;
    }
    // Where a rank acts for others too, they find their sums there.
    if (!equal) reachable.out = room + (staged ? in_bytes : 0);
  }
  levels.inside(reachable, [&](Reach& reach, const Call& told) {
    const std::size_t slots = column.slots();
    std::byte* sums = nullptr;
    if (place < parts) {
      sums = stage.scratch.take(column.nodes() * slots * call.bytes());
      add_slices(stage, reach, column, sums);
    }
    reach.barrier();  // from here on inputs may change
    if (place < parts) levels.run_across(sum_across(stage, told, sums, reachable.out, slots * call.count));
    if (equal) return;
    reach.barrier();
    const auto slot = static_cast<std::size_t>(place / parts);
    std::memcpy(call.out, static_cast<const std::byte*>(reach.out(place % parts)) + slot * call.bytes(),
                call.bytes());
    reach.barrier();  // nobody uses its room again before all have read it
  });
}

void by_memory::all_gather(Stage& stage) {
  const Call& call = stage.call;
  Levels& levels = stage.levels();
  const int place = levels.place();
  const int parts = levels.parts();
  const std::size_t bytes = call.bytes();
  const std::size_t out_bytes = bytes * static_cast<std::size_t>(stage.size());
  // Another acts for ranks that have no column of their own, and reads their inputs.
  const bool staged_in = place >= parts && !levels.reaches(call.in);
  const bool staged_out = !levels.reaches(call.out);
  Call reachable = call;
  reachable.whole = &call.shown();
  if (staged_in || staged_out) {
    std::byte* const room = levels.room(bytes + out_bytes);
    if (staged_in) reachable.in = std::memcpy(room, call.in, bytes);
    if (staged_out) reachable.out = room + bytes;
  }
  levels.inside(reachable, [&](Reach& reach, const Call&) {
    if (place < parts) {
      const Column column(levels, place);
      const std::size_t slots = column.slots();
      const auto node = static_cast<std::size_t>(levels.node());
      std::byte* const given = stage.scratch.take((column.nodes() + 1) * slots * bytes);
      std::byte* came = given + slots * bytes;
      std::memcpy(given, call.in, bytes);
      for (std::size_t k = 1; k < slots; ++k)
        if (column.rank(node, k) >= 0)
          std::memcpy(given + k * bytes, reach.in(place + static_cast<int>(k) * parts), bytes);
        else
          std::memset(given + k * bytes, 0, bytes);
      Call across = part_of_call(call);
      across.in = given;
      across.out = came;
      across.count = slots * call.count;
      levels.run_across(across);
      for (std::size_t m = 0; m < column.nodes(); ++m)
        for (std::size_t k = 0; k < slots; ++k, came += bytes)
          if (const int r = column.rank(m, k); r >= 0)
            std::memcpy(static_cast<std::byte*>(reachable.out) + static_cast<std::size_t>(r) * bytes, came,
                        bytes);
    }
    reach.barrier();
    for (int j = 0; j < parts; ++j) {
      if (j == place && !staged_out) continue;
      const Column column(levels, j);
      for (std::size_t m = 0; m < column.nodes(); ++m)
        for (std::size_t k = 0; k < column.slots(); ++k)
          if (const int r = column.rank(m, k); r >= 0) {
            const std::size_t at = static_cast<std::size_t>(r) * bytes;
            std::memcpy(stage.out() + at, static_cast<const std::byte*>(reach.out(j)) + at, bytes);
          }
    }
    reach.barrier();  // nobody changes its output before all have read it
  });
}

}  // namespace lockstep
