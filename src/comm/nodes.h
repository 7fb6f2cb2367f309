// Which ranks share a machine.
#pragma once

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

}  // namespace lockstep
