// ring: everybody sends to the next rank and receives from the one before, in chunks, each chunk forwarded
// as soon as it has come (pipelined).
//
//   all_reduce      2(n-1) steps, 2(n-1)/n · S bytes sent by each rank: the least there is
//   reduce_scatter  n-1 steps of S     all_gather  n-1 steps of S     broadcast  a chain, S bytes
//
// Order of summation: part i starts at rank i+1 and goes round to rank i. NOT canonical: the bits depend
// on n and on where a part begins. Sums of f16 and bf16 are rounded n-1 times, where a tree's are log2 n
// times.
#include "comm/algo/accumulate.h"
#include "comm/algo/builtin.h"

namespace lockstep {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{64} << 10;

// Chunk c of a part.
Range chunk_of(Range part, std::size_t c, std::size_t chunk) {
  return {std::min(part.begin + c * chunk, part.end), std::min(part.begin + (c + 1) * chunk, part.end)};
}

// n-1 steps round the ring. At step s rank r passes part (first - s) on and gets part (first - s - 1).
// Ticks run over the chunks of all steps: chunk c of step s goes out once it came in at step s-1.
template <class PartOf>
void go_round(Team& team, std::byte* data, std::size_t element, int first, PartOf part, Arrival arrival,
              const kernel::Reduction& reduction) {
  const int n = team.size();
  const std::size_t chunk = kChunkBytes / element;
  std::size_t chunks = 0;
  for (int i = 0; i < n; ++i) chunks = std::max(chunks, (part(i).count() + chunk - 1) / chunk);
  const auto index = [n](int i) { return ((i % n) + n) % n; };
  for (int step = 0; step < n - 1; ++step) {
    const Range out = part(index(first - step));
    const Range in = part(index(first - step - 1));
    for (std::size_t c = 0; c < chunks; ++c)
      team.swap((team.me() + 1) % n, slice(data, chunk_of(out, c, chunk), element), index(team.me() - 1),
                slice(data, chunk_of(in, c, chunk), element), arrival, reduction);
  }
}

// In the order of the routes, where there are any: parts belong to places in the ring, not to ranks.
void all_reduce(Stage& stage) {
  const Accumulator sum(stage, stage.out());
  Team team =
      stage.routes != nullptr ? Team(stage.channel(), stage.routes->ring) : Team::whole(stage.channel());
  const auto part = [&](int i) { return part_of(stage.call.count, stage.size(), i, stage.element()); };
  // The part that is complete here after the first round is the next rank's number.
  go_round(team, sum.data(), sum.element(), team.me(), part, Arrival::fold_before, sum.reduction());
  sum.finish(part((team.me() + 1) % team.size()));
  go_round(team, sum.data(), sum.element(), team.me() + 1, part, Arrival::store, sum.reduction());
}

void reduce_scatter(Stage& stage) {
  const kernel::Reduction reduction = stage.reduction();
  const std::size_t element = stage.element();
  const std::size_t count = stage.call.count;
  const std::size_t total = count * static_cast<std::size_t>(stage.size());
  std::byte* const sum = stage.scratch.take(total * element);
  if (total > 0) std::memcpy(sum, stage.in(), total * element);
  Team team = Team::whole(stage.channel());
  const auto part = [&](int i) {
    return Range{count * static_cast<std::size_t>(i), count * static_cast<std::size_t>(i + 1)};
  };
  go_round(team, sum, element, team.me() - 1, part, Arrival::fold_before, reduction);
  kernel::finish(stage.out(), sum + part(team.me()).begin * element, count, stage.reduction());
}

void all_gather(Stage& stage) {
  const std::size_t count = stage.call.count;
  Team team = Team::whole(stage.channel());
  const auto part = [&](int i) {
    return Range{count * static_cast<std::size_t>(i), count * static_cast<std::size_t>(i + 1)};
  };
  std::byte* const own = stage.out() + part(team.me()).begin * stage.element();
  if (own != stage.in()) std::memcpy(own, stage.in(), count * stage.element());
  go_round(team, stage.out(), stage.element(), team.me(), part, Arrival::store, stage.reduction());
}

void broadcast(Stage& stage) {
  Team team = Team::whole(stage.channel());
  const int n = team.size();
  const int place = (team.me() - stage.call.root + n) % n;  // in the chain, root first
  const std::size_t chunk = kChunkBytes / stage.element();
  const std::size_t chunks = (stage.call.count + chunk - 1) / chunk;
  const Range whole{0, stage.call.count};
  const kernel::Reduction reduction = stage.reduction();
  const auto bytes = [&](std::size_t c) {
    return slice(stage.out(), chunk_of(whole, c, chunk), stage.element());
  };
  const int next = (team.me() + 1) % n;
  const int previous = (team.me() - 1 + n) % n;
  for (std::size_t c = 0; c < chunks; ++c) {
    if (place > 0) team.recv(previous, bytes(c), Arrival::store, reduction);
    if (place < n - 1) team.send(next, bytes(c), reduction);
  }
}

class Ring final : public Algorithm {
 public:
  std::string_view name() const override { return "ring"; }
  bool canonical(std::span<const int>) const override { return false; }
  bool has(Collective what) const override {
    return what == Collective::all_reduce || what == Collective::reduce_scatter ||
           what == Collective::all_gather || what == Collective::broadcast;
  }
  Needs needs() const override { return {}; }
  Cost cost(const CallShape& shape) const override {
    const double steps = shape.ranks - 1;
    const auto s = static_cast<double>(shape.bytes);
    switch (shape.what) {
      case Collective::all_reduce:
        return {.messages = 2 * steps,
                .sent_bytes = 4 * steps / shape.ranks * s,
                .reduced_bytes = 3 * s * steps / shape.ranks,
                .wire_s = shape.wires == nullptr ? 0 : on_wires(shape)};
      case Collective::reduce_scatter:
        return {.messages = steps,
                .sent_bytes = 2 * steps * s,
                .copied_bytes = 2 * s * shape.ranks,
                .reduced_bytes = 3 * s * steps};
      case Collective::broadcast: return {.messages = steps, .sent_bytes = s};
      default: return {.messages = steps, .sent_bytes = 2 * steps * s};
    }
  }
  void run(Stage& stage) const override {
    switch (stage.call.what) {
      case Collective::all_reduce: return all_reduce(stage);
      case Collective::reduce_scatter: return reduce_scatter(stage);
      case Collective::all_gather: return all_gather(stage);
      default: return broadcast(stage);
    }
  }

 private:
  static double on_wires(const CallShape& shape) {
    const auto& ring = shape.routes->ring;
    const double part = static_cast<double>(shape.bytes) / shape.ranks;
    return 2.0 * (shape.ranks - 1) *
           slowest_link(ring, [&](int from, int to) { return shape.wires->seconds(from, to, part); });
  }
};

const Ring kInstance;

}  // namespace

const Algorithm& kRing = kInstance;

}  // namespace lockstep
