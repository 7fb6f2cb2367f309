// reduce_scatter and all_gather by halving-doubling: ranks at distance 1, 2, 4 … swap what belongs to each
// other's side.
//
//   reduce_scatter  log2 n steps, (n-1) · S bytes sent by each rank, for n a power of two
//   all_gather      the same, backwards
//
// S bytes a slice. As many bytes as pairwise and ring, in log2 n messages instead of n-1. Nothing is padded:
// slices are whole on every way.
//
// Any n: blocks of falling powers of two, as in halving_doubling.cc. After halving, member l of a block of b
// holds its block's sums of the slices r with r mod b = l: its *group*. The smaller block's sums go to the
// members of the next larger one whose groups they are, up to the largest block, which hands each slice to
// its rank. Slices lie in scratch in an order in which every group of every block is one range.
//
// Order of summation: canonical, by the same argument as there.
#include "comm/algo/halving_slices.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "comm/algo/team.h"

namespace lockstep {
namespace {

struct Block {
  int first = 0;
  int size = 1;  // a power of two
};

class Slices {
 public:
  explicit Slices(Stage& stage)
      : stage_(stage),
        team_(Team::whole(stage.channel())),
        bytes_(stage.call.bytes()),
        place_(static_cast<std::size_t>(team_.size())),
        data_(stage.scratch.take(bytes_ * static_cast<std::size_t>(team_.size()))) {
    for (int first = 0; first < team_.size();) {
      const int size = static_cast<int>(std::bit_floor(static_cast<unsigned>(team_.size() - first)));
      if (team_.me() >= first && team_.me() < first + size) mine_ = blocks_.size();
      blocks_.push_back({first, size});
      first += size;
    }
    // By the low bits of the rank, the lowest first.
    for (int r = 0; r < team_.size(); ++r) order_.push_back(r);
    const auto reversed = [&](int r) {
      unsigned bits = 0;
      for (int bit = 1; bit < blocks_[0].size; bit *= 2) bits = bits * 2 + ((r & bit) != 0 ? 1 : 0);
      return bits;
    };
    std::ranges::stable_sort(order_, {}, reversed);
    for (std::size_t i = 0; i < order_.size(); ++i) place_[static_cast<std::size_t>(order_[i])] = i;
  }

  void reduce_scatter() {
    const kernel::Reduction reduction = stage_.reduction();
    for (int r = 0; r < team_.size(); ++r)
      std::memcpy(at(r).data(), stage_.in() + bytes_ * static_cast<std::size_t>(r), bytes_);
    const Block block = blocks_[mine_];
    const int local = team_.me() - block.first;
    for (int distance = 1; distance < block.size; distance *= 2) {
      const int partner = local ^ distance;
      team_.swap(block.first + partner, group(partner, 2 * distance), block.first + partner,
                 group(local, 2 * distance),
                 (local & distance) != 0 ? Arrival::fold_before : Arrival::fold_after, reduction);
    }
    if (mine_ + 1 < blocks_.size()) {  // what all smaller blocks have, from the next one
      const Block next = blocks_[mine_ + 1];
      team_.recv(next.first + local % next.size, group(local, block.size), Arrival::fold_after, reduction);
    }
    if (mine_ > 0) {
      const Block larger = blocks_[mine_ - 1];
      for (int other = local; other < larger.size; other += block.size)
        team_.send(larger.first + other, group(other, larger.size), reduction);
      team_.recv(home(team_.me()), at(team_.me()), Arrival::store, reduction);
    } else {
      for (int r = local + block.size; r < team_.size(); r += block.size) team_.send(r, at(r), reduction);
    }
    // The divisor may have come with the peers' bytes.
    kernel::finish(stage_.out(), at(team_.me()).data(), stage_.call.count, stage_.reduction());
  }

  void all_gather() {
    const kernel::Reduction none{};  // nothing is folded
    std::memcpy(at(team_.me()).data(), stage_.in(), bytes_);
    const Block block = blocks_[mine_];
    const int local = team_.me() - block.first;
    if (mine_ > 0) {
      team_.send(home(team_.me()), at(team_.me()), none);
      const Block larger = blocks_[mine_ - 1];
      for (int other = local; other < larger.size; other += block.size)
        team_.recv(larger.first + other, group(other, larger.size), Arrival::store, none);
    } else {
      for (int r = local + block.size; r < team_.size(); r += block.size)
        team_.recv(r, at(r), Arrival::store, none);
    }
    if (mine_ + 1 < blocks_.size()) {
      const Block next = blocks_[mine_ + 1];
      team_.send(next.first + local % next.size, group(local, block.size), none);
    }
    for (int distance = block.size / 2; distance >= 1; distance /= 2) {
      const int partner = local ^ distance;
      team_.swap(block.first + partner, group(local, 2 * distance), block.first + partner,
                 group(partner, 2 * distance), Arrival::store, none);
    }
    for (int r = 0; r < team_.size(); ++r)
      std::memcpy(stage_.out() + bytes_ * static_cast<std::size_t>(r), at(r).data(), bytes_);
  }

 private:
  // The member of the largest block that has this rank's slice.
  int home(int rank) const { return rank % blocks_[0].size; }
  std::span<std::byte> at(int rank) const {
    return {data_ + bytes_ * place_[static_cast<std::size_t>(rank)], bytes_};
  }
  // The slices r with r mod size = l mod size.
  std::span<std::byte> group(int l, int size) const {
    const auto in = [&](int r) { return r % size == l % size; };
    const auto first = std::ranges::find_if(order_, in);
    const auto count = static_cast<std::size_t>(std::ranges::count_if(order_, in));
    return {data_ + bytes_ * static_cast<std::size_t>(first - order_.begin()), bytes_ * count};
  }

  Stage& stage_;
  Team team_;
  std::size_t bytes_;               // of a slice
  std::vector<int> order_ = {};     // of slices in scratch
  std::vector<std::size_t> place_;  // of each rank's in it
  std::byte* data_;
  std::vector<Block> blocks_ = {};  // largest first
  std::size_t mine_ = 0;            // this rank's block
};

}  // namespace

void halve_slices(Stage& stage) { Slices(stage).reduce_scatter(); }
void double_slices(Stage& stage) { Slices(stage).all_gather(); }

Cost slices_cost_of_halving(const CallShape& shape) {
  const auto s = static_cast<double>(shape.bytes);
  const double n = shape.ranks;
  const bool even = std::has_single_bit(static_cast<unsigned>(shape.ranks));
  const bool sums = shape.what == Collective::reduce_scatter;
  const double depth = std::bit_width(static_cast<unsigned>(shape.ranks)) - 1;
  double time = 0;
  if (shape.wires != nullptr) {
    const int block = static_cast<int>(std::bit_floor(static_cast<unsigned>(shape.ranks)));
    double bytes = n * s;
    for (int distance = 1; distance < block; distance *= 2) {
      bytes /= 2;
      time += slowest_step(shape, bytes, [&](int r) { return r < block ? r ^ distance : -1; });
    }
    if (!even) time += slowest_step(shape, bytes + s, [&](int r) { return r >= block ? r - block : -1; });
  }
  return {.messages = depth + (even ? 0 : 2),
          .sent_bytes = 2 * (n - 1) * s + (even ? 0 : 2 * n * s),
          .copied_bytes = 2 * n * s + (sums ? 0 : 2 * s),
          .reduced_bytes = sums ? 3 * (n - 1) * s : 0,
          .wire_s = time};
}

}  // namespace lockstep
