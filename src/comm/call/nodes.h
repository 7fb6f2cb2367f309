// Which ranks share a machine.
#pragma once

#include <bit>
#include <cstddef>
#include <map>
#include <span>
#include <vector>

namespace lockstep {

// The ranks of each node, nodes in the order of their first rank.
inline std::vector<std::vector<int>> members_of_nodes(std::span<const int> nodes) {
  std::vector<std::vector<int>> members;
  std::map<int, std::size_t> place;
  for (std::size_t r = 0; r < nodes.size(); ++r) {
    const auto [at, fresh] = place.try_emplace(nodes[r], members.size());
    if (fresh) members.emplace_back();
    members[at->second].push_back(static_cast<int>(r));
  }
  return members;
}

// Whether nodes are subtrees of the canonical tree, so that sums by node are canonical: consecutive ranks,
// all nodes of one power of two but for a smaller last one.
inline bool nodes_are_aligned(std::span<const int> nodes) {
  const auto members = members_of_nodes(nodes);
  const std::size_t size = members.front().size();
  int next = 0;
  for (std::size_t m = 0; m < members.size(); ++m) {
    for (int r : members[m])
      if (r != next++) return false;
    if (m + 1 < members.size() && (members[m].size() != size || !std::has_single_bit(size))) return false;
  }
  return members.back().size() <= size;
}

}  // namespace lockstep
