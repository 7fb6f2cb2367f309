// halving-doubling: at distance 1, 2, 4 … two ranks swap halves of what they still hold and sum the half
// they keep, then undo it with the results.
//
//   all_reduce  2 log2 n steps, 2(n-1)/n · S bytes sent by each rank, for n a power of two
//   reduce_scatter, all_gather: halving_slices.cc
//
// Any n: the ranks form blocks of falling powers of two (7 = 4 + 2 + 1). Each block halves by itself; then
// the smallest block's sums go to the next larger one, and so on to the largest, which holds the result and
// hands it back the same way. Member l of a block keeps the range that the low bits of l select, so a
// larger block's member needs just one member of the smaller block (the one with its low bits).
//
// Order of summation: canonical. Inside a block neighbours come first; between blocks the larger is on the
// left: 7 gives ((01)(23)) + ((45) + 6).
#include "comm/algo/halving_doubling.h"

#include <bit>

#include "comm/algo/accumulate.h"
#include "comm/algo/builtin.h"
#include "comm/algo/halving_slices.h"

namespace lockstep {

HalvingDoubling::HalvingDoubling(Team& team, std::size_t count, std::size_t element_bytes)
    : team_(team),
      count_(count),
      element_(element_bytes),
      line_(std::max<std::size_t>(1, 64 / element_bytes)) {
  for (int first = 0; first < team.size();) {
    const int size = static_cast<int>(std::bit_floor(static_cast<unsigned>(team.size() - first)));
    if (team.me() >= first && team.me() < first + size) mine_ = blocks_.size();
    blocks_.push_back({first, size});
    first += size;
  }
}

Range HalvingDoubling::half(Range whole, int upper) const {
  const std::size_t lines = (whole.count() + line_ - 1) / line_;
  const std::size_t middle = std::min(whole.end, whole.begin + (lines + 1) / 2 * line_);
  return upper != 0 ? Range{middle, whole.end} : Range{whole.begin, middle};
}

Range HalvingDoubling::range_of(int local, int block_size) const {
  Range range{0, count_};
  for (int distance = 1; distance < block_size; distance *= 2) range = half(range, local & distance);
  return range;
}

Range HalvingDoubling::reduce(std::byte* data, const kernel::Reduction& reduction) {
  const Block block = blocks_[mine_];
  const int local = team_.me() - block.first;
  Range range{0, count_};
  for (int distance = 1; distance < block.size; distance *= 2) {
    const int upper = local & distance;
    const Range keep = half(range, upper);
    const Range give = half(range, upper == 0 ? 1 : 0);
    const int partner = block.first + (local ^ distance);
    team_.swap(partner, at(data, give), partner, at(data, keep),
               upper != 0 ? Arrival::fold_before : Arrival::fold_after, reduction);
    range = keep;
  }
  if (mine_ + 1 < blocks_.size()) {  // what all smaller blocks have, from the next one
    const Block next = blocks_[mine_ + 1];
    team_.recv(next.first + local % next.size, at(data, range), Arrival::fold_after, reduction);
  }
  if (mine_ == 0) return range;
  const Block larger = blocks_[mine_ - 1];
  for (int other = local; other < larger.size; other += block.size)
    team_.send(larger.first + other, at(data, range_of(other, larger.size)), reduction);
  return {};
}

void HalvingDoubling::gather(std::byte* data) {
  const kernel::Reduction none{};  // nothing is folded on the way back
  const Block block = blocks_[mine_];
  const int local = team_.me() - block.first;
  if (mine_ > 0) {
    const Block larger = blocks_[mine_ - 1];
    for (int other = local; other < larger.size; other += block.size)
      team_.recv(larger.first + other, at(data, range_of(other, larger.size)), Arrival::store, none);
  }
  if (mine_ + 1 < blocks_.size()) {
    const Block next = blocks_[mine_ + 1];
    team_.send(next.first + local % next.size, at(data, range_of(local, block.size)), none);
  }
  for (int distance = block.size / 2; distance >= 1; distance /= 2) {
    const Range mine = range_of(local, 2 * distance);
    const int partner = local ^ distance;
    const Range theirs = range_of(partner, 2 * distance);
    team_.swap(block.first + partner, at(data, mine), block.first + partner, at(data, theirs), Arrival::store,
               none);
  }
}

namespace {

class HalvingDoublingAlgorithm final : public Algorithm {
 public:
  std::string_view name() const override { return "halving-doubling"; }
  bool canonical(std::span<const int>) const override { return true; }
  bool has(Collective what) const override {
    return what == Collective::all_reduce || what == Collective::reduce_scatter ||
           what == Collective::all_gather;
  }
  Needs needs() const override { return {}; }
  Cost cost(const CallShape& shape) const override {
    if (shape.what != Collective::all_reduce) return slices_cost_of_halving(shape);
    const auto n = static_cast<double>(shape.ranks);
    const double depth = std::bit_width(static_cast<unsigned>(shape.ranks)) - 1;
    const bool even = std::has_single_bit(static_cast<unsigned>(shape.ranks));
    const auto s = static_cast<double>(shape.bytes);
    const double once = (n - 1) / n * s;
    return {.messages = 2 * depth + (even ? 0 : 2),
            .sent_bytes = 4 * once + (even ? 0 : s),
            .reduced_bytes = 3 * once,
            .wire_s = shape.wires == nullptr ? 0 : on_wires(shape)};
  }
  void run(Stage& stage) const override {
    if (stage.call.bytes() == 0) return;
    if (stage.call.what == Collective::reduce_scatter) return halve_slices(stage);
    if (stage.call.what == Collective::all_gather) return double_slices(stage);
    const Accumulator sum(stage, stage.out());
    Team team = Team::whole(stage.channel());
    HalvingDoubling scheme(team, stage.call.count, stage.element());
    sum.finish(scheme.reduce(sum.data(), sum.reduction()));
    scheme.gather(sum.data());
  }

 private:
  static double on_wires(const CallShape& shape) {
    double time = 0;
    double bytes = static_cast<double>(shape.bytes);
    const bool even = std::has_single_bit(static_cast<unsigned>(shape.ranks));
    const int block = static_cast<int>(std::bit_floor(static_cast<unsigned>(shape.ranks)));
    for (int distance = 1; distance < block; distance *= 2) {
      bytes /= 2;
      time += 2 * slowest_step(shape, bytes, [&](int r) { return r ^ distance; });
    }
    if (!even) time += 2 * slowest_step(shape, bytes, [&](int r) { return r >= block ? r - block : -1; });
    return time;
  }
};

const HalvingDoublingAlgorithm kInstance;

}  // namespace

const Algorithm& kHalvingDoubling = kInstance;

}  // namespace lockstep
