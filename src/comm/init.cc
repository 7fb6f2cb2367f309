#include "lockstep/comm/init.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <numeric>

#include "comm/engine/shm_engine.h"
#include "comm/group_impl.h"
#include "comm/shm/message.h"
#include "comm/shm/rendezvous.h"
#include "comm/shm/session.h"
#include "comm/tune/calibrate.h"
#include "lockstep/base/identity.h"
#include "lockstep/base/knobs.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

int cores_here() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Which node each rank is on: one machine is one node, unless the knob pretends otherwise.
std::vector<int> nodes_of(int size, int node_size) {
  std::vector<int> nodes(static_cast<std::size_t>(size), 0);
  if (node_size > 0)
    for (int r = 0; r < size; ++r) nodes[static_cast<std::size_t>(r)] = r / node_size;
  return nodes;
}

std::unique_ptr<ShmEngine> world_engine(std::shared_ptr<shm::Session> session, int rank) {
  std::vector<int> everybody(static_cast<std::size_t>(session->size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  // The head of the arena lives as long as the session.
  auto* const head = reinterpret_cast<shm::Control*>(session->arena().at(0));
  std::shared_ptr<shm::Control> control(session, head);
  return std::make_unique<ShmEngine>(std::move(session), std::move(control), "world", rank,
                                     std::move(everybody));
}

std::chrono::milliseconds timeout_of(const InitOptions& options, const Knobs& knobs) {
  if (options.timeout.count() < 0)
    throw UsageError("InitOptions::timeout of " + std::to_string(options.timeout.count()) +
                     " ms; accepted: positive, or zero for LOCKSTEP_TIMEOUT_S");
  return options.timeout.count() > 0 ? std::min(options.timeout, kLongestTimeout) : knobs.timeout;
}

}  // namespace

Group init(InitOptions options) try {
  const Knobs knobs = Knobs::from_environment();
  const std::chrono::milliseconds timeout = timeout_of(options, knobs);
  const Identity who = Identity::from_environment();
  if (who.local_size != who.size)
    throw UsageError(
        "this job has " + std::to_string(who.size) + " workers, " + std::to_string(who.local_size) +
        " of them here: workers on several machines are not supported yet; start all on one machine");
  if (static_cast<std::size_t>(who.size) + 1 > shm::kMostDescriptors)
    throw UsageError("a job on one machine has at most " + std::to_string(shm::kMostDescriptors - 1) +
                     " workers, not " + std::to_string(who.size));
  if (who.size > 1) set_log_rank(who.rank);

  const shm::ArenaShape shape = shm::arena_shape(who.size, knobs.arena_bytes);
  shm::Met met;
  if (who.size > 1) {
    met = shm::rendezvous({who.job, who.rank, who.size, shape, knobs.init_timeout});
  } else {
    met.arena = shm::Arena::create(shape);
    met.cores = cores_here();
  }
  auto arena = std::make_shared<shm::Arena>(std::move(met.arena), shape);
  arena->use_huge_pages(knobs.huge_pages);
  auto session = std::make_shared<shm::Session>(arena, nodes_of(who.size, knobs.node_size), met.cores);
  auto engine = world_engine(session, who.rank);
  if (who.size > 1) session->watch(std::move(met.pidfds));
  auto impl = std::make_shared<GroupImpl>(std::move(engine), "world", who.job, timeout);
  Group world(std::move(impl));
  load_or_measure_costs(world);
  return world;
} catch (const std::bad_alloc&) {
  throw SystemError("cannot join the other workers: out of memory (ulimit -v limits it)");
}

std::vector<Group> thread_groups(int size, InitOptions options, std::vector<int> nodes) {
  if (size < 1) throw UsageError("thread_groups needs at least one rank, not " + std::to_string(size));
  const Knobs knobs = Knobs::from_environment();
  if (nodes.empty()) nodes = nodes_of(size, knobs.node_size);
  if (nodes.size() != static_cast<std::size_t>(size))
    throw UsageError("thread_groups got " + std::to_string(nodes.size()) + " nodes for " +
                     std::to_string(size) + " ranks");
  for (int node : nodes)
    if (node < 0)
      throw UsageError("thread_groups got node " + std::to_string(node) + "; accepted: 0 and above");
  const shm::ArenaShape shape = shm::arena_shape(size, knobs.arena_bytes);
  auto arena = std::make_shared<shm::Arena>(shm::Arena::create(shape), shape);
  arena->use_huge_pages(knobs.huge_pages);
  auto session = std::make_shared<shm::Session>(arena, std::move(nodes), cores_here());
  std::vector<Group> groups;
  for (int r = 0; r < size; ++r)
    groups.emplace_back(std::make_shared<GroupImpl>(world_engine(session, r), "world", "threads",
                                                    timeout_of(options, knobs)));
  return groups;
}

}  // namespace lockstep
