// Which way the bytes of an algorithm go, where its result leaves that open: the order of the ring, and which
// rank of two holds a partial sum of the canonical tree. comm/tune/links.h finds both from the measured
// links.
#pragma once

#include <functional>
#include <vector>

namespace lockstep {

// Two neighbouring subtrees of the canonical tree meet: the rank that holds the one sends it to the rank that
// holds the other, which then holds both.
struct Merge {
  int into = 0;
  int from = 0;
  bool into_is_left = true;  // `into` holds the lower ranks' sum
};

struct Routes {
  std::vector<int> ring;    // the ranks in the order of the ring
  std::vector<Merge> tree;  // from the leaves up; the last one's `into` is the root
};

// Seconds that a message takes from one rank to another.
using Way = std::function<double(int from, int to)>;

// Ranks in their order, and every partial sum with the lowest rank: what holds where nothing is known.
Routes plain_routes(int ranks);

// The tree of least expected time, and the ring whose slowest link is fastest; both deterministic.
std::vector<Merge> best_tree(int ranks, const Way& way);
std::vector<int> best_ring(int ranks, const Way& way);
double slowest_link(const std::vector<int>& ring, const Way& way);
double tree_time(const std::vector<Merge>& tree, int ranks, const Way& way);

}  // namespace lockstep
