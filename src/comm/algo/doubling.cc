// doubling: at distance 1, 2, 4 … two ranks swap everything they have summed so far, and both add. Half the
// steps of halving-doubling for log2 n times the bytes, so it is for small payloads on channels with a long
// way.
//
//   all_reduce  log2 n steps, log2 n · S bytes sent by each rank, for n a power of two
//
// Any n: blocks of falling powers of two (7 = 4 + 2 + 1) as in halving-doubling; a smaller block's sum goes
// up to the next larger one, member to member, and the result comes back the same way.
//
// Order of summation: canonical, as in halving-doubling.
#include <bit>

#include "comm/algo/accumulate.h"
#include "comm/algo/builtin.h"

namespace lockstep {
namespace {

struct Block {
  int first = 0;
  int size = 1;  // a power of two
};

class Doubling final : public Algorithm {
 public:
  std::string_view name() const override { return "doubling"; }
  bool canonical(std::span<const int>) const override { return true; }
  bool has(Collective what) const override { return what == Collective::all_reduce; }
  Needs needs() const override { return {}; }
  Cost cost(const CallShape& shape) const override {
    const double depth = std::bit_width(static_cast<unsigned>(shape.ranks)) - 1;
    const bool even = std::has_single_bit(static_cast<unsigned>(shape.ranks));
    const auto s = static_cast<double>(shape.bytes);
    const double steps = depth + (even ? 0 : 2);
    return {.messages = steps,
            .sent_bytes = 2 * steps * s,
            .copied_bytes = steps * s,
            .reduced_bytes = 3 * steps * s,
            .wire_s = shape.wires == nullptr ? 0 : on_wires(shape)};
  }
  void run(Stage& stage) const override;

 private:
  static double on_wires(const CallShape& shape) {
    double time = 0;
    const auto bytes = static_cast<double>(shape.bytes);
    const int block = static_cast<int>(std::bit_floor(static_cast<unsigned>(shape.ranks)));
    for (int distance = 1; distance < block; distance *= 2)
      time += slowest_step(shape, bytes, [&](int r) { return r ^ distance; });
    if (block != shape.ranks)
      time += 2 * slowest_step(shape, bytes, [&](int r) { return r >= block ? r - block : -1; });
    return time;
  }
};

void Doubling::run(Stage& stage) const {
  const kernel::Reduction reduction = stage.reduction();
  const std::size_t count = stage.call.count;
  const std::size_t bytes = count * stage.element();
  // Both sides send what they hold while the other's comes, so that arrives beside it.
  const std::size_t other_at = (bytes + 63) / 64 * 64;
  std::byte* const sum = stage.scratch.take(other_at + bytes);
  std::byte* const other = sum + other_at;
  if (bytes > 0) std::memcpy(sum, stage.in(), bytes);
  Team team = Team::whole(stage.channel());

  std::vector<Block> blocks;
  std::size_t mine = 0;
  for (int first = 0; first < team.size();) {
    const int size = static_cast<int>(std::bit_floor(static_cast<unsigned>(team.size() - first)));
    if (team.me() >= first && team.me() < first + size) mine = blocks.size();
    blocks.push_back({first, size});
    first += size;
  }
  const Block block = blocks[mine];
  const int local = team.me() - block.first;
  const std::span own(sum, bytes);
  const std::span come(other, bytes);
  for (int distance = 1; distance < block.size; distance *= 2) {
    const int partner = block.first + (local ^ distance);
    team.swap(partner, own, partner, come, Arrival::store, reduction);
    if ((local & distance) != 0)
      kernel::combine(sum, other, sum, count, reduction);
    else
      kernel::combine(sum, sum, other, count, reduction);
  }
  if (mine + 1 < blocks.size()) {  // what all smaller blocks have
    const Block next = blocks[mine + 1];
    team.recv(next.first + local % next.size, own, Arrival::fold_after, reduction);
  }
  const kernel::Reduction none{};
  const std::span result(stage.out(), bytes);
  if (mine > 0) {
    const Block larger = blocks[mine - 1];
    for (int to = local; to < larger.size; to += block.size) team.send(larger.first + to, own, reduction);
    team.recv(larger.first + local, result, Arrival::store, none);
  } else {
    kernel::finish(stage.out(), sum, count, stage.reduction());
  }
  if (mine + 1 < blocks.size()) {
    const Block next = blocks[mine + 1];
    if (local < next.size) team.send(next.first + local, result, none);
  }
}

const Doubling kInstance;

}  // namespace

const Algorithm& kDoubling = kInstance;

}  // namespace lockstep
