#include "lockstep/grad/subtrees.h"

#include <bit>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/lanes.h"

namespace lockstep {
namespace {

int padded(int lanes) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(lanes))); }

}  // namespace

int Subtrees::span() const { return padded(lanes) / count; }

int Subtrees::existing() const { return (lanes + span() - 1) / span(); }

void check(const Subtrees& subtrees) {
  const auto [lanes, count] = subtrees;
  if (lanes < 1)
    throw UsageError("subtrees of " + std::to_string(lanes) + " lanes; accepted: 1 lane or more");
  if (count >= 1 && count <= padded(lanes) && std::has_single_bit(static_cast<unsigned>(count))) return;
  throw UsageError(std::to_string(count) + " subtrees of " + std::to_string(lanes) +
                   " lanes; accepted: a power of two, " + std::to_string(padded(lanes)) + " at most");
}

SubtreeShare subtrees_of(int worker, int workers, const Subtrees& subtrees) {
  const int span = subtrees.span();
  const LaneRange own = lanes_of(worker, workers, subtrees.lanes);
  if (own.count == 0) return {};
  SubtreeShare share{.first = own.first / span, .count = (own.count + span - 1) / span};
  if (own.span >= span) return share;
  share.workers = 0;
  for (int other = 0; other < workers; ++other) {
    const LaneRange range = lanes_of(other, workers, subtrees.lanes);
    if (range.count == 0 || range.first / span != share.first) continue;
    if (other < worker) ++share.place;
    ++share.workers;
  }
  return share;
}

}  // namespace lockstep
