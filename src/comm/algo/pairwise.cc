// pairwise: n-1 swaps, at step s with the ranks s ahead and s behind; what came is summed locally.
//
//   reduce_scatter  n-1 steps, (n-1)·S bytes sent          all_to_all  the same
//   all_reduce      reduce_scatter of parts, then an all_gather: 2(n-1) steps, 2(n-1)/n · S bytes
//   gather, scatter n-1 messages at the root
//
// Order of summation: canonical (all contributions to a part meet on one rank, which sums the tree).
#include "comm/algo/accumulate.h"
#include "comm/algo/builtin.h"

namespace lockstep {
namespace {

// Swaps with everybody: `out(r)` goes to rank r, `in(r)` comes from it.
template <class OutTo, class InFrom>
void swap_with_all(Team& team, OutTo out, InFrom in, const kernel::Reduction& reduction) {
  const int n = team.size();
  for (int step = 1; step < n; ++step) {
    const int to = (team.me() + step) % n;
    const int from = (team.me() - step + n) % n;
    team.swap(to, out(to), from, in(from), Arrival::store, reduction);
  }
}

// Sums everybody's `part(me)` into `to`, with scratch for what comes.
template <class PartOf>
void reduce_own_part(Stage& stage, Team& team, PartOf part, std::byte* to) {
  const Range own = part(team.me());
  const std::size_t own_bytes = own.count() * stage.element();
  std::byte* const room = stage.scratch.take(own_bytes * static_cast<std::size_t>(team.size()));
  const auto come = [&](int r) {
    return std::span(room + own_bytes * static_cast<std::size_t>(r), own_bytes);
  };
  const auto source = [&](int r) {
    const Range range = part(r);
    return std::span(stage.in() + range.begin * stage.element(), range.count() * stage.element());
  };
  swap_with_all(team, source, come, stage.reduction());
  std::vector<const void*> ins;
  for (int r = 0; r < team.size(); ++r) ins.push_back(r == team.me() ? source(r).data() : come(r).data());
  void* const out = to;
  kernel::reduce_tree({&out, 1}, ins, own.count(), stage.reduction());
}

void all_reduce(Stage& stage) {
  Team team = Team::whole(stage.channel());
  const auto part = [&](int i) { return part_of(stage.call.count, stage.size(), i, stage.element()); };
  const auto place = [&](int i) { return slice(stage.out(), part(i), stage.element()); };
  reduce_own_part(stage, team, part, place(team.me()).data());
  swap_with_all(
      team, [&](int) { return place(team.me()); }, place, stage.reduction());
}

void reduce_scatter(Stage& stage) {
  Team team = Team::whole(stage.channel());
  const auto part = [&](int i) {
    const std::size_t begin = stage.call.count * static_cast<std::size_t>(i);
    return Range{begin, begin + stage.call.count};
  };
  reduce_own_part(stage, team, part, stage.out());
}

void all_to_all(Stage& stage) {
  Team team = Team::whole(stage.channel());
  const std::size_t bytes = stage.call.bytes();
  const std::byte* from = stage.in();
  if (from == stage.out()) {  // in place: a slice may be overwritten before it was sent
    std::byte* const copy = stage.scratch.take(bytes * static_cast<std::size_t>(team.size()));
    std::memcpy(copy, from, bytes * static_cast<std::size_t>(team.size()));
    from = copy;
  }
  const auto source = [&](int r) { return std::span(from + bytes * static_cast<std::size_t>(r), bytes); };
  const auto place = [&](int r) {
    return std::span(stage.out() + bytes * static_cast<std::size_t>(r), bytes);
  };
  std::memcpy(place(team.me()).data(), source(team.me()).data(), bytes);
  swap_with_all(team, source, place, stage.reduction());
}

void gather(Stage& stage) {
  Team team = Team::whole(stage.channel());
  const std::size_t bytes = stage.call.bytes();
  const std::span own(stage.in(), bytes);
  if (team.me() != stage.call.root) return team.send(stage.call.root, own, stage.reduction());
  for (int r = 0; r < team.size(); ++r) {
    const std::span place(stage.out() + bytes * static_cast<std::size_t>(r), bytes);
    if (r != team.me())
      team.recv(r, place, Arrival::store, stage.reduction());
    else if (place.data() != own.data())
      std::memcpy(place.data(), own.data(), bytes);
  }
}

void scatter(Stage& stage) {
  Team team = Team::whole(stage.channel());
  const std::size_t bytes = stage.call.bytes();
  const std::span own(stage.out(), bytes);
  if (team.me() != stage.call.root) return team.recv(stage.call.root, own, Arrival::store, stage.reduction());
  for (int r = 0; r < team.size(); ++r) {
    const std::span source(stage.in() + bytes * static_cast<std::size_t>(r), bytes);
    if (r != team.me())
      team.send(r, source, stage.reduction());
    else if (source.data() != own.data())
      std::memcpy(own.data(), source.data(), bytes);
  }
}

class Pairwise final : public Algorithm {
 public:
  std::string_view name() const override { return "pairwise"; }
  bool canonical(std::span<const int>) const override { return true; }
  bool has(Collective what) const override {
    return what == Collective::all_reduce || what == Collective::reduce_scatter ||
           what == Collective::all_to_all || what == Collective::gather || what == Collective::scatter;
  }
  Needs needs() const override { return {}; }
  Cost cost(const CallShape& shape) const override {
    const double steps = shape.ranks - 1;
    const auto s = static_cast<double>(shape.bytes);
    switch (shape.what) {
      case Collective::all_reduce:
        return {.messages = 2 * steps,
                .sent_bytes = 4 * steps / shape.ranks * s,
                .reduced_bytes = s + s / shape.ranks,
                .wire_s = shape.wires == nullptr ? 0 : on_wires(shape)};
      case Collective::reduce_scatter:
        return {.messages = steps, .sent_bytes = 2 * steps * s, .reduced_bytes = (shape.ranks + 1) * s};
      case Collective::all_to_all:
        return {.messages = steps, .sent_bytes = 2 * steps * s, .copied_bytes = 2 * s};
      default: return {.messages = steps, .sent_bytes = steps * s, .copied_bytes = 2 * s};
    }
  }
  void run(Stage& stage) const override {
    if (stage.call.bytes() == 0) return;
    switch (stage.call.what) {
      case Collective::all_reduce: return all_reduce(stage);
      case Collective::reduce_scatter: return reduce_scatter(stage);
      case Collective::all_to_all: return all_to_all(stage);
      case Collective::gather: return gather(stage);
      default: return scatter(stage);
    }
  }

 private:
  static double on_wires(const CallShape& shape) {
    double time = 0;
    const double part = static_cast<double>(shape.bytes) / shape.ranks;
    for (int step = 1; step < shape.ranks; ++step)
      time += 2 * slowest_step(shape, part, [&](int r) { return (r + step) % shape.ranks; });
    return time;
  }
};

const Pairwise kInstance;

}  // namespace

const Algorithm& kPairwise = kInstance;

}  // namespace lockstep
