// pages: ranks of one machine read each other's private memory in place (process_vm_readv): one copy where
// the windows of `direct` take two. All-reduce only.
//
// Rank r owns part r of the elements.
//   1  read the own part of everybody's input, block by block, and sum each block into the own output while
//   it
//      is in cache
//   2  barrier: every part is somewhere summed
//   3  read the other parts, each out of its owner's output
//   4  barrier: nobody changes its output before all have read it
// Each rank reads 2(n-1)/n · S. Peers whose buffers are in comm memory are read by pointer.
// In place too: until the barrier a rank writes its own part alone, which its peers read afterwards alone.
//
// Everybody reads, nobody writes to a peer, though writing results out would save a barrier. A rank that
// gives a call up (its time is over, another rank died) goes on with its life, frees its buffers and uses the
// memory for something else. It waits for its peers to leave the call, but not for ever, and one that was
// stopped half way would be yet to write. Comm memory stays mapped and comm memory; private memory belongs to
// its process, and when that is gone its number may belong to another. A late read harms nobody: what it
// brought is never used, since that peer does not come to the next barrier.
//
// Order of summation: canonical.
#include <algorithm>
#include <cstring>

#include "comm/algo/builtin.h"
#include "comm/call/range.h"

namespace lockstep {
namespace {

// What lies in scratch at a time, of all peers together, and of one at least: a block should still be in
// cache when it is summed, and be worth a system call.
constexpr std::size_t kBlocksBytes = std::size_t{256} << 10;
constexpr std::size_t kLeastBlockBytes = std::size_t{16} << 10;
constexpr std::size_t kMostBlockBytes = std::size_t{64} << 10;

void reduce_own_part(Stage& stage, Reach& reach, Range own) {
  const int n = stage.size();
  const int me = stage.rank();
  const std::size_t element = stage.element();
  const std::size_t peers = static_cast<std::size_t>(std::max(1, n - 1));
  const std::size_t block_bytes = std::clamp(kBlocksBytes / peers, kLeastBlockBytes, kMostBlockBytes);
  const std::size_t block = block_bytes / element;
  std::byte* const scratch = stage.scratch.take(block_bytes * peers);
  std::vector<const void*> ins(static_cast<std::size_t>(n));
  for (std::size_t begin = own.begin; begin < own.end; begin += block) {
    const std::size_t count = std::min(block, own.end - begin);
    const std::size_t at = begin * element;
    ins[static_cast<std::size_t>(me)] = stage.in() + at;
    for (int step = 1; step < n; ++step) {  // everybody starts elsewhere
      const int r = (me + step) % n;
      const void*& in = ins[static_cast<std::size_t>(r)];
      if (const auto* const shared = static_cast<const std::byte*>(reach.in(r))) {
        in = shared + at;
        continue;
      }
      std::byte* const to = scratch + static_cast<std::size_t>(step - 1) * block_bytes;
      reach.read_in(r, at, {to, count * element});
      in = to;
    }
    void* const out = stage.out() + at;
    kernel::reduce_tree({&out, 1}, ins, count, stage.reduction());
  }
}

void collect_other_parts(Stage& stage, Reach& reach) {
  const int n = stage.size();
  for (int step = 1; step < n; ++step) {
    const int r = (stage.rank() + step) % n;
    const Range part = part_of(stage.call.count, n, r, stage.element());
    if (part.count() == 0) continue;
    const std::size_t at = part.begin * stage.element();
    const std::span<std::byte> to = slice(stage.out(), part, stage.element());
    if (const auto* const shared = static_cast<const std::byte*>(reach.out(r)))
      std::memcpy(to.data(), shared + at, to.size());
    else
      reach.read_out(r, at, to);
  }
}

class PagesAlgorithm final : public Algorithm {
 public:
  std::string_view name() const override { return "pages"; }
  bool canonical(std::span<const int>) const override { return true; }
  Needs needs() const override { return {.reach = true, .pages = true}; }
  bool has(Collective what) const override { return what == Collective::all_reduce; }
  // A copy by the kernel counts twice: it takes hold of every page on the way. How much that is differs
  // between processors, by more than the copy itself; until it is measured here, windows are the safer
  // choice.
  Cost cost(const CallShape& shape) const override {
    const auto n = static_cast<double>(shape.ranks);
    const auto s = static_cast<double>(shape.bytes);
    const double copied = 2 * (n - 1) / n * s;
    return {.barriers = 3, .copied_bytes = 2 * 2 * copied, .reduced_bytes = s + s / n};
  }
  void run(Stage& stage) const override {
    if (stage.call.count == 0) return;
    Reach& reach = stage.reach();
    reduce_own_part(stage, reach, part_of(stage.call.count, stage.size(), stage.rank(), stage.element()));
    reach.barrier();
    collect_other_parts(stage, reach);
    reach.barrier();
  }
};

const PagesAlgorithm kInstance;

}  // namespace

const Algorithm& kPages = kInstance;

}  // namespace lockstep
