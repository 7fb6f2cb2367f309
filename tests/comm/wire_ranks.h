// Threads as ranks whose groups cross a wire: TCP over loopback, alone or with shared memory inside pretended
// nodes.
#pragma once

#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "comm/call/nodes.h"
#include "comm/engine/node_engine.h"
#include "comm/world/group_impl.h"
#include "comm/world/local_world.h"
#include "comm/world/tcp_world.h"
#include "lockstep/base/knobs.h"

namespace lockstep::testing {

inline constexpr std::chrono::minutes kWirePatience{2};

inline std::vector<Group> tcp_groups(int size, net::Security security,
                                     std::chrono::milliseconds timeout = kWirePatience) {
  std::vector<int> nodes;
  for (int r = 0; r < size; ++r) nodes.push_back(r);
  std::vector<Group> groups;
  for (auto& engine : tcp_threads(std::move(nodes), security, kWirePatience))
    groups.push_back(make_group(std::move(engine), "world", timeout));
  return groups;
}

// The flat engine's own part.
inline std::unique_ptr<Engine> part_of_flat_engine(Engine& flat, int colour, int key,
                                                   const std::string& group, const Call& split) {
  return flat.split(colour, key, group, split);
}

// nodes[r]: the node that rank r is on. `name` begins with the engine inside: shared memory, or a part of
// TCP.
inline std::vector<Group> node_groups(const std::vector<int>& nodes, net::Security security,
                                      std::chrono::milliseconds timeout = kWirePatience,
                                      const std::string& name = "shm+tcp",
                                      const AcrossMaker& across = part_of_flat_engine) {
  auto flat = tcp_threads(nodes, security, kWirePatience);
  std::vector<std::unique_ptr<Engine>> inside(nodes.size());
  if (name.starts_with("shm+"))
    for (const auto& ranks : members_of_nodes(nodes)) {
      auto local = local_threads("world", std::vector<int>(ranks.size(), 0), Knobs::from_environment());
      for (std::size_t i = 0; i < ranks.size(); ++i)
        inside[static_cast<std::size_t>(ranks[i])] = std::move(local[i]);
    }
  std::vector<Group> groups(nodes.size());
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < nodes.size(); ++r)
    threads.emplace_back([&, r] {
      Call call;
      call.what = Collective::split;
      call.timeout = kWirePatience;
      if (inside[r] == nullptr)
        inside[r] = flat[r]->split(nodes[r], static_cast<int>(r), "world/inside", call);
      groups[r] =
          make_group(NodeEngine::make(name, std::move(flat[r]), std::move(inside[r]), across, "world", call),
                     "world", timeout);
    });
  threads.clear();
  return groups;
}

}  // namespace lockstep::testing
