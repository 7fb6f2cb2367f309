// direct for private memory: buffers that peers can't reach pass through windows in shared memory, small
// enough to stay in cache. One barrier a window.
//
// all_reduce is `direct` on the windows. A rank's own part is summed straight from its input and written
// straight to its output; only the others' parts go through. Step t does three things at once for three
// neighbouring windows:
//   give t      copy the others' parts of the input into the own window
//   reduce t-1  sum the own part of everybody's window; the result takes its place in all of them
//   take t-2    copy the others' results out of the own window
//
// The remaining collectives are one step: give, barrier, take what is needed from everybody's window.
//
// Who has read a line writes to it, here as a result, there by hand_back: the line then belongs to the
// reader, and its writer gets it back by one transfer. A line that was only read is shared between two
// caches, and the next write must first revoke it: measured three to six times slower on AMD's Zen, a quarter
// on an Intel.
#include <cstring>

#include "comm/algo/direct.h"
#include "comm/algo/team.h"

namespace lockstep::direct {
namespace {

// Makes the lines of a window that this rank alone has read its own; their contents are nobody's any more.
void hand_back(std::byte* window, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) *const_cast<volatile std::byte*>(window + at) = {};
}

void all_reduce(Stage& stage, Reach& reach) {
  const int n = stage.size();
  const int me = stage.rank();
  const std::size_t element = stage.element();
  const std::size_t window = kWindowBytes / element;
  const std::size_t steps = (stage.call.count + window - 1) / window;
  const auto extent = [&](std::size_t t) {
    return Range{t * window, std::min(stage.call.count, (t + 1) * window)};
  };
  const auto slot_of = [&](std::size_t t) { return t % reach.windows(); };
  const auto own = [&](std::size_t t) { return part_of(extent(t).count(), n, me, element); };
  // All but the own part of window t.
  const auto copy_others = [&](std::byte* to, const std::byte* from, std::size_t t) {
    const Range part = own(t);
    std::memcpy(to, from, part.begin * element);
    std::memcpy(to + part.end * element, from + part.end * element, (extent(t).count() - part.end) * element);
  };

  std::vector<const void*> ins(static_cast<std::size_t>(n));
  std::vector<void*> outs(static_cast<std::size_t>(n));
  const auto reduce = [&](std::size_t t) {
    const Range part = own(t);
    if (part.count() == 0) return;
    const std::size_t at = (extent(t).begin + part.begin) * element;
    for (int r = 0; r < n; ++r) {
      std::byte* const theirs = reach.window(r, slot_of(t)) + part.begin * element;
      ins[static_cast<std::size_t>(r)] = r == me ? stage.in() + at : theirs;
      outs[static_cast<std::size_t>(r)] = r == me ? stage.out() + at : theirs;
    }
    kernel::reduce_tree(outs, ins, part.count(), stage.reduction());
  };
  for (std::size_t t = 0; t < steps + 2; ++t) {
    if (t < steps) copy_others(reach.window(me, slot_of(t)), stage.in() + extent(t).begin * element, t);
    if (t >= 1 && t - 1 < steps) reduce(t - 1);
    if (t >= 2)
      copy_others(stage.out() + extent(t - 2).begin * element, reach.window(me, slot_of(t - 2)), t - 2);
    if (t < steps + 1) reach.barrier();
  }
}

// Elements [begin, end) of each of `slices` slices of `count` elements, packed one after the other.
void pack(std::byte* to, const std::byte* from, std::size_t slices, std::size_t count, Range range,
          std::size_t element) {
  for (std::size_t s = 0; s < slices; ++s)
    std::memcpy(to + s * range.count() * element, from + (s * count + range.begin) * element,
                range.count() * element);
}

// How a collective uses the windows: how many slices a giver packs, who gives, and who takes.
struct Plan {
  std::size_t slices = 1;  // more than one: each for one rank
  bool only_root_gives = false;
  bool only_root_takes = false;
};

Plan plan_of(const Stage& stage) {
  const auto n = static_cast<std::size_t>(stage.size());
  switch (stage.call.what) {
    case Collective::reduce_scatter:
    case Collective::all_to_all: return {.slices = n};
    case Collective::scatter: return {.slices = n, .only_root_gives = true};
    case Collective::broadcast: return {.only_root_gives = true};
    case Collective::gather:
    case Collective::reduce: return {.only_root_takes = true};
    default: return {};  // all_gather
  }
}

// Takes elements `range` of this rank's share out of everybody's window.
void take(Stage& stage, const Reach& reach, const Plan& plan, Range range, std::size_t slot) {
  const int n = stage.size();
  const std::size_t element = stage.element();
  const std::size_t bytes = range.count() * element;
  const std::size_t me = plan.slices > 1 ? static_cast<std::size_t>(stage.rank()) : 0;  // the own slice
  const bool alone = plan.slices > 1 || plan.only_root_takes || n == 2;
  const auto theirs = [&](int r) { return reach.window(r, slot) + me * bytes; };
  const auto from = [&](int r) -> const std::byte* {
    return r == stage.rank() ? stage.in() + (me * stage.call.count + range.begin) * element : theirs(r);
  };
  const auto done_with = [&](int r) {
    if (alone && r != stage.rank()) hand_back(theirs(r), bytes);
  };
  std::byte* const to = stage.out() + range.begin * element;
  switch (stage.call.what) {
    case Collective::reduce_scatter:
    case Collective::reduce: {
      std::vector<const void*> ins;
      for (int r = 0; r < n; ++r) ins.push_back(from(r));
      void* const out = to;
      kernel::reduce_tree({&out, 1}, ins, range.count(), stage.reduction());
      for (int r = 0; r < n; ++r) done_with(r);
      return;
    }
    case Collective::broadcast:
      if (stage.rank() == stage.call.root) return;
      [[fallthrough]];
    case Collective::scatter:
      if (from(stage.call.root) != to) std::memcpy(to, from(stage.call.root), bytes);
      return done_with(stage.call.root);
    default:
      for (int r = 0; r < n; ++r) {
        std::byte* const place = to + static_cast<std::size_t>(r) * stage.call.bytes();
        if (from(r) != place) std::memcpy(place, from(r), bytes);
        done_with(r);
      }
  }
}

void step_by_step(Stage& stage, Reach& reach) {
  const Plan plan = plan_of(stage);
  const bool root = stage.rank() == stage.call.root;
  // Whole lines, unless there are so many slices that a window has no line for each.
  const std::size_t line = std::max<std::size_t>(1, 64 / stage.element());
  const std::size_t most = kWindowBytes / stage.element() / plan.slices;
  const std::size_t step = most < line ? most : most / line * line;
  for (std::size_t t = 0; t * step < stage.call.count; ++t) {
    const Range range{t * step, std::min(stage.call.count, (t + 1) * step)};
    const std::size_t slot = t % reach.windows();
    if (root || !plan.only_root_gives)
      pack(reach.window(stage.rank(), slot), stage.in(), plan.slices, stage.call.count, range,
           stage.element());
    reach.barrier();
    if (root || !plan.only_root_takes) take(stage, reach, plan, range, slot);
  }
}

}  // namespace

void run_through_windows(Stage& stage) {
  Reach& reach = stage.reach();
  if (stage.call.what == Collective::all_reduce)
    all_reduce(stage, reach);
  else
    step_by_step(stage, reach);
}

}  // namespace lockstep::direct
