// eager: every rank posts its input with the call itself; after the one barrier that opens every call,
// each takes what it needs from everybody's post. One barrier in all; n·S bytes read by each rank, so it
// is for small payloads. Order: canonical (each rank sums the whole tree for itself).
#include <cstring>

#include "comm/algo/builtin.h"

namespace lockstep {
namespace {

class Eager final : public Algorithm {
 public:
  std::string_view name() const override { return "eager"; }
  bool canonical(std::span<const int>) const override { return true; }
  bool has(Collective what) const override {
    return what != Collective::barrier && what != Collective::send && what != Collective::recv &&
           what != Collective::split;
  }
  Needs needs() const override { return {.reach = true, .posts = true, .at_most_bytes = kEagerBytes}; }
  Cost cost(const CallShape& shape) const override {
    const auto n = static_cast<double>(shape.ranks);
    const auto s = static_cast<double>(shape.bytes);
    switch (shape.what) {
      case Collective::all_reduce:
      case Collective::reduce: return {.barriers = 1, .copied_bytes = 2 * s, .reduced_bytes = (n + 1) * s};
      case Collective::reduce_scatter:
        return {.barriers = 1, .copied_bytes = 2 * n * s, .reduced_bytes = (n + 1) * s};
      case Collective::broadcast: return {.barriers = 1, .copied_bytes = 4 * s};
      default: return {.barriers = 1, .copied_bytes = 2 * s + 2 * n * s};
    }
  }

  void run(Stage& stage) const override;
};

void Eager::run(Stage& stage) const {
  const Call& call = stage.call;
  const Reach& reach = stage.reach();
  const int n = stage.size();
  const std::size_t bytes = call.bytes();
  const auto post = [&](int r) { return static_cast<const std::byte*>(reach.posted(r)); };
  const auto own = static_cast<std::size_t>(stage.rank()) * bytes;
  const auto reduce_from = [&](std::size_t offset) {
    std::vector<const void*> ins;
    for (int r = 0; r < n; ++r) ins.push_back((r == stage.rank() ? stage.in() : post(r)) + offset);
    void* const out = call.out;
    kernel::reduce_tree({&out, 1}, ins, call.count, stage.reduction());
  };
  const auto collect = [&](std::size_t offset) {
    for (int r = 0; r < n; ++r)
      std::memcpy(stage.out() + static_cast<std::size_t>(r) * bytes, post(r) + offset, bytes);
  };
  if (bytes == 0) return;
  switch (call.what) {
    case Collective::all_reduce: return reduce_from(0);
    case Collective::reduce_scatter: return reduce_from(own);
    case Collective::reduce:
      if (stage.rank() == call.root) reduce_from(0);
      return;
    case Collective::all_gather: return collect(0);
    case Collective::all_to_all: return collect(own);
    case Collective::gather:
      if (stage.rank() == call.root) collect(0);
      return;
    case Collective::broadcast:
      if (stage.rank() != call.root) std::memcpy(call.out, post(call.root), bytes);
      return;
    case Collective::scatter: std::memmove(call.out, post(call.root) + own, bytes); return;
    default: return;
  }
}

const Eager kInstance;

}  // namespace

const Algorithm& kEager = kInstance;

}  // namespace lockstep
