// direct: ranks that share memory work on each other's buffers in place.
//
//   all_reduce      each rank sums its part of everybody's buffer and writes it to everybody: one pass,
//                   no copies, S bytes read and S written by each rank
//   reduce_scatter  each rank sums its slice of everybody's input
//   reduce          each rank sums its part into root's output
//   the others      each rank copies what it needs out of its peers' inputs
//
// The barrier that opens every call says that all inputs are there; one more says that all are done.
// Buffers that peers can't reach go through windows: direct_windows.cc.
// Order of summation: canonical.
#include "comm/algo/direct.h"

#include "comm/algo/builtin.h"
#include "comm/algo/team.h"
#include "comm/kernel/copy.h"

namespace lockstep {
namespace direct {
namespace {

void all_reduce(Stage& stage, const Reach& reach) {
  const Range part = part_of(stage.call.count, stage.size(), stage.rank(), stage.element());
  if (part.count() == 0) return;
  const std::size_t offset = part.begin * stage.element();
  std::vector<const void*> ins;
  std::vector<void*> outs;
  for (int r = 0; r < stage.size(); ++r) {
    ins.push_back(static_cast<const std::byte*>(reach.in(r)) + offset);
    outs.push_back(static_cast<std::byte*>(reach.out(r)) + offset);
  }
  kernel::reduce_tree(outs, ins, part.count(), stage.reduction());
}

void reduce_range(Stage& stage, const Reach& reach, Range range, std::byte* to) {
  if (range.count() == 0) return;
  std::vector<const void*> ins;
  for (int r = 0; r < stage.size(); ++r)
    ins.push_back(static_cast<const std::byte*>(reach.in(r)) + range.begin * stage.element());
  void* const out = to;
  kernel::reduce_tree({&out, 1}, ins, range.count(), stage.reduction());
}

// Copies `bytes` at `offset` of every rank's input to its place in the own output.
void collect(Stage& stage, const Reach& reach, std::size_t offset, std::size_t bytes) {
  const int n = stage.size();
  for (int step = 0; step < n; ++step) {  // everybody starts elsewhere
    const int r = (stage.rank() + step) % n;
    const std::byte* const from = static_cast<const std::byte*>(reach.in(r)) + offset;
    std::byte* const to = stage.out() + static_cast<std::size_t>(r) * bytes;
    if (from != to) kernel::copy(to, from, bytes, bytes * static_cast<std::size_t>(n));
  }
}

}  // namespace

bool reachable(Stage& stage) {
  const Call& call = stage.call;
  const Reach& reach = stage.reach();
  const int n = stage.size();
  const auto all = [&](auto buffer) {
    for (int r = 0; r < n; ++r)
      if (buffer(r) == nullptr) return false;
    return true;
  };
  const auto all_in = [&] { return all([&](int r) { return reach.in(r); }); };
  switch (call.what) {
    case Collective::all_reduce: return all_in() && all([&](int r) { return reach.out(r); });
    case Collective::reduce: return all_in() && reach.out(call.root) != nullptr;
    case Collective::broadcast:
    case Collective::scatter: return reach.in(call.root) != nullptr;
    case Collective::all_to_all:  // in place, a slice could be overwritten before its reader came
      return all_in() && all([&](int r) { return reach.in(r) != reach.out(r) ? reach.in(r) : nullptr; });
    default: return all_in();
  }
}

void run_on_comm_memory(Stage& stage) {
  const Call& call = stage.call;
  Reach& reach = stage.reach();
  const std::size_t bytes = call.bytes();
  const auto own = static_cast<std::size_t>(stage.rank());
  switch (call.what) {
    case Collective::all_reduce: all_reduce(stage, reach); break;
    case Collective::reduce_scatter:
      reduce_range(stage, reach, {own * call.count, (own + 1) * call.count}, stage.out());
      break;
    case Collective::reduce: {
      const Range part = part_of(call.count, stage.size(), stage.rank(), stage.element());
      reduce_range(stage, reach, part,
                   static_cast<std::byte*>(reach.out(call.root)) + part.begin * stage.element());
      break;
    }
    case Collective::broadcast:
      if (stage.rank() != call.root) kernel::copy(call.out, reach.in(call.root), bytes, bytes);
      break;
    case Collective::scatter: {
      const std::byte* const from = static_cast<const std::byte*>(reach.in(call.root)) + own * bytes;
      if (from != stage.out()) kernel::copy(call.out, from, bytes, bytes);
      break;
    }
    case Collective::gather:
      if (stage.rank() == call.root) collect(stage, reach, 0, bytes);
      break;
    case Collective::all_gather: collect(stage, reach, 0, bytes); break;
    case Collective::all_to_all: collect(stage, reach, own * bytes, bytes); break;
    default: return;  // barrier: the opening one was it
  }
  reach.barrier();
}

}  // namespace direct

namespace {

class Direct final : public Algorithm {
 public:
  std::string_view name() const override { return "direct"; }
  bool canonical(std::span<const int>) const override { return true; }
  Needs needs() const override { return {.reach = true}; }
  bool has(Collective what) const override {
    return what != Collective::send && what != Collective::recv && what != Collective::split;
  }
  Cost cost(const CallShape& shape) const override {
    const auto n = static_cast<double>(shape.ranks);
    const auto s = static_cast<double>(shape.bytes);
    const bool through = !shape.reachable;  // windows cost a copy in, and a barrier each
    const double windows = through ? s / static_cast<double>(kWindowBytes) : 0;
    const double barriers = through ? 3 + windows : 2;
    switch (shape.what) {
      case Collective::all_reduce:
        return {
            .barriers = barriers, .copied_bytes = through ? 2 * s * (n - 1) / n : 0, .reduced_bytes = 2 * s};
      case Collective::reduce:
        return {.barriers = barriers,
                .copied_bytes = through ? 2 * s : 0,
                .reduced_bytes = through ? (n + 1) * s : s + s / n};
      case Collective::reduce_scatter:
        return {.barriers = barriers, .copied_bytes = through ? 2 * n * s : 0, .reduced_bytes = (n + 1) * s};
      case Collective::broadcast:
      case Collective::scatter: return {.barriers = barriers, .copied_bytes = through ? 4 * s : 2 * s};
      case Collective::barrier: return {.barriers = 1};
      default: return {.barriers = barriers, .copied_bytes = (through ? 4 : 2) * n * s};
    }
  }
  void run(Stage& stage) const override {
    if (stage.call.what != Collective::barrier && stage.call.count == 0) return;
    if (stage.call.what == Collective::barrier || direct::reachable(stage))
      direct::run_on_comm_memory(stage);
    else
      direct::run_through_windows(stage);
  }
};

const Direct kInstance;

}  // namespace

const Algorithm& kDirect = kInstance;

}  // namespace lockstep
