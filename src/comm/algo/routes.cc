#include "comm/algo/routes.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace lockstep {
namespace {

int left_of(int ranks) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks - 1))); }

// The best time at which each rank of [first, first + ranks) can hold their sum, and from whom it got the
// other half.
struct Subtree {
  int first = 0;
  int ranks = 1;
  std::vector<double> time;  // by rank - first
  std::vector<int> from;     // the holder of the other half; -1 for a leaf
  std::vector<Subtree> halves;
};

Subtree solve(int first, int ranks, const Way& way) {
  Subtree tree{.first = first, .ranks = ranks, .time = {}, .from = {}, .halves = {}};
  tree.time.assign(static_cast<std::size_t>(ranks), 0);
  tree.from.assign(static_cast<std::size_t>(ranks), -1);
  if (ranks == 1) return tree;
  const int left = left_of(ranks);
  tree.halves = {solve(first, left, way), solve(first + left, ranks - left, way)};
  for (int i = 0; i < ranks; ++i) {
    const bool in_left = i < left;
    const Subtree& own = tree.halves[in_left ? 0 : 1];
    const Subtree& other = tree.halves[in_left ? 1 : 0];
    const int me = first + i;
    double best = 0;
    for (int j = 0; j < other.ranks; ++j) {
      const int them = other.first + j;
      const double time = std::max(own.time[static_cast<std::size_t>(me - own.first)],
                                   other.time[static_cast<std::size_t>(j)]) +
                          way(them, me);
      if (j > 0 && time >= best) continue;
      best = time;
      tree.from[static_cast<std::size_t>(i)] = them;
    }
    tree.time[static_cast<std::size_t>(i)] = best;
  }
  return tree;
}

void list_merges(const Subtree& tree, int holder, std::vector<Merge>& merges) {
  if (tree.ranks == 1) return;
  const int from = tree.from[static_cast<std::size_t>(holder - tree.first)];
  const bool in_left = holder < tree.halves[1].first;
  list_merges(tree.halves[0], in_left ? holder : from, merges);
  list_merges(tree.halves[1], in_left ? from : holder, merges);
  merges.push_back({.into = holder, .from = from, .into_is_left = in_left});
}

// The slowest link decides; among equals the sum.
std::pair<double, double> rate(const std::vector<int>& ring, const Way& way) {
  double sum = 0;
  for (std::size_t i = 0; i < ring.size(); ++i) sum += way(ring[i], ring[(i + 1) % ring.size()]);
  return {slowest_link(ring, way), sum};
}

}  // namespace

Routes plain_routes(int ranks) {
  Routes routes;
  routes.ring.resize(static_cast<std::size_t>(ranks));
  std::iota(routes.ring.begin(), routes.ring.end(), 0);
  routes.tree = best_tree(ranks, [](int, int) { return 1.0; });  // of equal holders the lowest is taken
  return routes;
}

std::vector<Merge> best_tree(int ranks, const Way& way) {
  const Subtree tree = solve(0, ranks, way);
  const auto root = std::min_element(tree.time.begin(), tree.time.end()) - tree.time.begin();
  std::vector<Merge> merges;
  list_merges(tree, static_cast<int>(root), merges);
  return merges;
}

double tree_time(const std::vector<Merge>& tree, int ranks, const Way& way) {
  std::vector<double> time(static_cast<std::size_t>(ranks), 0);
  for (const Merge& merge : tree) {
    double& into = time[static_cast<std::size_t>(merge.into)];
    into = std::max(into, time[static_cast<std::size_t>(merge.from)]) + way(merge.from, merge.into);
  }
  return tree.empty() ? 0 : time[static_cast<std::size_t>(tree.back().into)];
}

double slowest_link(const std::vector<int>& ring, const Way& way) {
  double slowest = 0;
  for (std::size_t i = 0; i < ring.size(); ++i)
    slowest = std::max(slowest, way(ring[i], ring[(i + 1) % ring.size()]));
  return slowest;
}

// Turning a stretch of the ring round replaces two of its links by two others: as long as that helps.
std::vector<int> best_ring(int ranks, const Way& way) {
  std::vector<int> ring(static_cast<std::size_t>(ranks));
  std::iota(ring.begin(), ring.end(), 0);
  auto best = rate(ring, way);
  for (bool better = true; better;) {
    better = false;
    for (int i = 1; i < ranks; ++i)
      for (int j = i + 1; j <= ranks; ++j) {
        std::reverse(ring.begin() + i, ring.begin() + j);
        const auto now = rate(ring, way);
        if (now < best) {
          best = now;
          better = true;
        } else {
          std::reverse(ring.begin() + i, ring.begin() + j);
        }
      }
  }
  return ring;
}

}  // namespace lockstep
