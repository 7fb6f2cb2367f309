#include "comm/world/local_world.h"

#include <algorithm>
#include <numeric>

#include "base/cores.h"
#include "comm/call/rank_mask.h"
#include "comm/shm/rendezvous.h"
#include "comm/shm/session.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::unique_ptr<ShmEngine> shared_engine(std::shared_ptr<shm::Session> session, const RankNames& names,
                                         int rank, const Knobs& knobs) {
  std::vector<int> everybody(static_cast<std::size_t>(session->size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  // The head of the arena lives as long as the session.
  auto* const head = reinterpret_cast<shm::Control*>(session->arena().at(0));
  std::shared_ptr<shm::Control> control(session, head);
  return std::make_unique<ShmEngine>(std::move(session), std::move(control), names, rank,
                                     std::move(everybody), knobs.algorithm);
}

std::shared_ptr<shm::Session> session_over(UniqueFd arena_fd, const shm::ArenaShape& shape,
                                           const RankNames& names, std::vector<int> nodes, int cores,
                                           const Knobs& knobs) {
  auto arena = std::make_shared<shm::Arena>(std::move(arena_fd), shape);
  arena->use_huge_pages(knobs.huge_pages);
  arena->call_ranks(names);
  return std::make_shared<shm::Session>(arena, std::move(nodes), cores);
}

}  // namespace

int cores_here() { return std::max(1, static_cast<int>(allowed_cores().count())); }

std::vector<int> pretended_nodes(int size, const Knobs& knobs) {
  std::vector<int> nodes(static_cast<std::size_t>(size), 0);
  if (knobs.node_size > 0)
    for (int r = 0; r < size; ++r) nodes[static_cast<std::size_t>(r)] = r / knobs.node_size;
  return nodes;
}

std::unique_ptr<ShmEngine> local_world(const std::string& door, const Membership& who, std::vector<int> nodes,
                                       const Knobs& knobs) {
  check_group_size(who.size);
  const shm::ArenaShape shape = shm::arena_shape(who.size, knobs.arena_bytes);
  shm::Met met;
  if (who.size > 1) {
    met = shm::rendezvous({.door = door,
                           .job = who.label(),
                           .call = who.call(),
                           .rank = who.rank,
                           .size = who.size,
                           .names = who.rank_names(),
                           .shape = shape,
                           .timeout = knobs.init_timeout,
                           .warn_after = knobs.warn_after});
  } else {
    met.arena = shm::Arena::create(shape);
    met.cores = cores_here();
  }
  auto session =
      session_over(std::move(met.arena), shape, who.rank_names(), std::move(nodes), met.cores, knobs);
  auto engine = shared_engine(session, who.rank_names(), who.rank, knobs);
  if (who.size > 1) session->watch(std::move(met.pidfds));
  engine->try_pages(knobs.timeout);
  return engine;
}

std::vector<std::unique_ptr<ShmEngine>> local_threads(const std::string& group, std::vector<int> nodes,
                                                      const Knobs& knobs) {
  const int size = static_cast<int>(nodes.size());
  const shm::ArenaShape shape = shm::arena_shape(size, knobs.arena_bytes);
  const RankNames names = RankNames::plain(group, size);
  auto session = session_over(shm::Arena::create(shape), shape, names, std::move(nodes), cores_here(), knobs);
  std::vector<std::unique_ptr<ShmEngine>> engines;
  for (int r = 0; r < size; ++r) {
    engines.push_back(shared_engine(session, names, r, knobs));
    engines.back()->try_own_pages();
  }
  return engines;
}

}  // namespace lockstep
