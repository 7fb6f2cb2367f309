// direct for private memory: buffers that peers can't reach pass through windows in shared memory, small
// enough to stay in cache, two of each so that one fills while the other is read. One barrier a
// window.
//
// all_reduce keeps what it can out of the windows: a rank's own part is summed straight from its input and
// written straight to its output. Step t does three things at once for three neighbouring windows:
//   give t      copy the others' parts of the input into the own window
//   reduce t-1  sum the own part of everybody's window, to the output and to the result window
//   take t-2    copy the others' results out
//
// The remaining collectives, and the all_reduce of two ranks (where summing all of it twice costs nothing and
// saves the results' way back), are one step: give, barrier, take what is needed from everybody's window.
#include <cstring>

#include "comm/algo/direct.h"
#include "comm/algo/team.h"

namespace lockstep::direct {
namespace {

void all_reduce(Stage& stage, Reach& reach) {
  const int n = stage.size();
  const int me = stage.rank();
  const std::size_t element = stage.element();
  const std::size_t window = reach.window_bytes() / element;
  const std::size_t steps = (stage.call.count + window - 1) / window;
  const auto extent = [&](std::size_t t) {
    return Range{t * window, std::min(stage.call.count, (t + 1) * window)};
  };
  const auto part = [&](std::size_t t, int r) { return part_of(extent(t).count(), n, r, element); };

  std::vector<const void*> ins(static_cast<std::size_t>(n));
  const auto give = [&](std::size_t t) {
    const std::byte* const from = stage.in() + extent(t).begin * element;
    std::byte* const to = reach.give(me, static_cast<int>(t % 2));
    const Range own = part(t, me);
    std::memcpy(to, from, own.begin * element);
    std::memcpy(to + own.end * element, from + own.end * element, (extent(t).count() - own.end) * element);
  };
  const auto reduce = [&](std::size_t t) {
    const Range own = part(t, me);
    if (own.count() == 0) return;
    const std::size_t at = extent(t).begin * element;
    const int slot = static_cast<int>(t % 2);
    for (int r = 0; r < n; ++r)
      ins[static_cast<std::size_t>(r)] =
          (r == me ? stage.in() + at : reach.give(r, slot)) + own.begin * element;
    void* const outs[] = {stage.out() + at + own.begin * element,
                          reach.result(me, slot) + own.begin * element};
    kernel::reduce_tree(outs, ins, own.count(), stage.reduction());
  };
  const auto take = [&](std::size_t t) {
    std::byte* const to = stage.out() + extent(t).begin * element;
    for (int step = 1; step < n; ++step) {
      const int r = (me + step) % n;
      const Range theirs = part(t, r);
      std::memcpy(to + theirs.begin * element,
                  reach.result(r, static_cast<int>(t % 2)) + theirs.begin * element,
                  theirs.count() * element);
    }
  };
  for (std::size_t t = 0; t < steps + 2; ++t) {
    if (t < steps) give(t);
    if (t >= 1 && t - 1 < steps) reduce(t - 1);
    if (t >= 2) take(t - 2);
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

// How a collective uses the windows: how many slices a giver packs, and who gives.
struct Plan {
  std::size_t slices = 1;
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
    default: return {};  // all_gather, all_reduce of two
  }
}

// Takes elements `range` of this rank's share out of everybody's window.
void take(Stage& stage, const Reach& reach, const Plan& plan, Range range, int slot) {
  const int n = stage.size();
  const std::size_t element = stage.element();
  const std::size_t bytes = range.count() * element;
  const std::size_t own =
      plan.slices > 1 ? static_cast<std::size_t>(stage.rank()) * bytes : 0;  // in a window
  std::byte* const to = stage.out() + range.begin * element;
  switch (stage.call.what) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
    case Collective::reduce: {
      const std::size_t slice =
          plan.slices > 1 ? static_cast<std::size_t>(stage.rank()) * stage.call.count : 0;
      std::vector<const void*> ins;
      for (int r = 0; r < n; ++r)
        ins.push_back(r == stage.rank() ? stage.in() + (slice + range.begin) * element
                                        : reach.give(r, slot) + own);
      void* const out = to;
      return kernel::reduce_tree({&out, 1}, ins, range.count(), stage.reduction());
    }
    case Collective::broadcast:
      if (stage.rank() == stage.call.root) return;
      [[fallthrough]];
    case Collective::scatter: std::memcpy(to, reach.give(stage.call.root, slot) + own, bytes); return;
    default:
      for (int r = 0; r < n; ++r)
        std::memcpy(to + static_cast<std::size_t>(r) * stage.call.bytes(), reach.give(r, slot) + own, bytes);
  }
}

void step_by_step(Stage& stage, Reach& reach) {
  const Plan plan = plan_of(stage);
  const bool root = stage.rank() == stage.call.root;
  const std::size_t line = std::max<std::size_t>(1, 64 / stage.element());
  const std::size_t step = std::max(line, reach.window_bytes() / stage.element() / plan.slices / line * line);
  for (std::size_t t = 0; t * step < stage.call.count; ++t) {
    const Range range{t * step, std::min(stage.call.count, (t + 1) * step)};
    const int slot = static_cast<int>(t % 2);
    if (root || !plan.only_root_gives)
      pack(reach.give(stage.rank(), slot), stage.in(), plan.slices, stage.call.count, range, stage.element());
    reach.barrier();
    if (root || !plan.only_root_takes) take(stage, reach, plan, range, slot);
  }
}

}  // namespace

void run_through_windows(Stage& stage) {
  Reach& reach = *stage.channel.reach();
  if (stage.call.what == Collective::all_reduce && stage.size() > 2)
    all_reduce(stage, reach);
  else
    step_by_step(stage, reach);
}

}  // namespace lockstep::direct
