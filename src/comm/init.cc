#include "lockstep/comm/init.h"

#include <algorithm>
#include <new>

#include "comm/engine/node_engine.h"
#include "comm/engine/registry.h"
#include "comm/group_impl.h"
#include "comm/local_world.h"
#include "comm/nodes.h"
#include "comm/rank_mask.h"
#include "comm/tcp_world.h"
#include "comm/tune/calibrate.h"
#include "lockstep/base/identity.h"
#include "lockstep/base/knobs.h"
#include "lockstep/base/log.h"
#include "lockstep/base/standard_fds.h"
#include "net/secret.h"

namespace lockstep {
namespace {

std::chrono::milliseconds timeout_of(const InitOptions& options, const Knobs& knobs) {
  if (options.timeout.count() < 0)
    throw UsageError("InitOptions::timeout of " + std::to_string(options.timeout.count()) +
                     " ms; accepted: positive, or zero for LOCKSTEP_TIMEOUT_S");
  return options.timeout.count() > 0 ? std::min(options.timeout, kLongestTimeout) : knobs.timeout;
}

// Which node each rank is on: one machine is one node, unless the knob pretends otherwise.
std::vector<int> nodes_of(int size, int node_size) {
  std::vector<int> nodes(static_cast<std::size_t>(size), 0);
  if (node_size > 0)
    for (int r = 0; r < size; ++r) nodes[static_cast<std::size_t>(r)] = r / node_size;
  return nodes;
}

const EngineKind& engine_kind(const std::string& name) {
  if (const EngineKind* const kind = find_engine(name)) return *kind;
  std::string built = "shm, tcp";
  for (const std::string& other : engine_names()) built += ", " + other;
  throw UsageError("LOCKSTEP_ENGINE asks for " + name +
                   ", which this program was built without; it has: " + built);
}

// What `auto` means for this job.
std::string choose_engine(const Knobs& knobs, const Identity& who) {
  if (knobs.engine != "auto") return knobs.engine;
  if (who.local_size == who.size) return "shm";
  return who.started_by_mpi() && find_engine("mpi") != nullptr ? "shm+mpi" : "shm+tcp";
}

Call internal_split(const Knobs& knobs) {
  Call call;
  call.what = Collective::split;
  call.timeout = knobs.init_timeout;
  return call;
}

// Part of a group of a wire engine: MPI's and TCP's split themselves.
std::unique_ptr<Engine> split_flat(Engine& flat, int colour, int key, const std::string& group,
                                   const Call& call) {
  return flat.split(colour, key, group, call);
}

// Gloo finds its peers through a group that exists.
std::unique_ptr<Engine> split_for_gloo(Engine& flat, int colour, int key, const std::string& group,
                                       const Call& call) {
  auto column = flat.split(colour, key, group, call);
  if (column == nullptr) return nullptr;
  const Group carrier = make_group(std::move(column), group, call.timeout);
  return engine_kind("gloo").make(&carrier);
}

// Under which the workers of one machine find each other. Its socket's name is for everybody to see, and to
// take first where it can be guessed: with a secret it can't. Launchers of ours give one.
std::string door_of(const Identity& who) {
  const auto secret = net::Secret::from_environment();
  return secret ? secret->derive("rendezvous on one machine, job " + who.job).hex() : who.job;
}

// Shared memory inside the nodes that the flat engine knows.
std::unique_ptr<Engine> with_nodes(const char* name, std::unique_ptr<Engine> flat, const Identity& who,
                                   const Knobs& knobs, const AcrossMaker& across) {
  const auto members = members_of_nodes(flat->nodes());
  for (std::size_t m = 0; m < members.size(); ++m) {
    const auto at = std::find(members[m].begin(), members[m].end(), flat->rank());
    if (at == members[m].end()) continue;
    const int local = static_cast<int>(members[m].size());
    auto inside = local_world(door_of(who) + ".node" + std::to_string(m), who.job, "world",
                              static_cast<int>(at - members[m].begin()), local,
                              std::vector<int>(members[m].size(), static_cast<int>(m)), knobs);
    if (local > 1) load_or_measure_costs(*inside);
    return NodeEngine::make(name, std::move(flat), std::move(inside), across, "world", internal_split(knobs));
  }
  throw SystemError("rank " + std::to_string(flat->rank()) + " is on no node");
}

std::unique_ptr<Engine> make_engine(const std::string& name, const Identity& who, const Knobs& knobs) {
  if (name == "shm") {
    if (who.local_size != who.size)
      throw UsageError(
          "LOCKSTEP_ENGINE=shm, but of this job's " + std::to_string(who.size) + " workers only " +
          std::to_string(who.local_size) +
          " are on this machine; accepted for several machines: auto, tcp, mpi, gloo, shm+tcp, shm+mpi, "
          "shm+gloo");
    auto engine = local_world(door_of(who), who.job, "world", who.rank, who.size,
                              nodes_of(who.size, knobs.node_size), knobs);
    load_or_measure_costs(*engine);
    return engine;
  }
  if (name == "tcp") return tcp_world(who, knobs);
  if (name == "shm+tcp") return with_nodes("shm+tcp", tcp_world(who, knobs), who, knobs, split_flat);
  if (name == "shm+gloo") return with_nodes("shm+gloo", tcp_world(who, knobs), who, knobs, split_for_gloo);
  if (name == "mpi") return engine_kind("mpi").make(nullptr);
  if (name == "shm+mpi")
    return with_nodes("shm+mpi", engine_kind("mpi").make(nullptr), who, knobs, split_flat);
  // Gloo: over whatever carries its rendezvous.
  const EngineKind& gloo = engine_kind("gloo");
  const bool here = who.local_size == who.size;
  const Group carrier =
      make_group(make_engine(here ? "shm" : "tcp", who, knobs), "world", knobs.init_timeout);
  return gloo.make(&carrier);
}

}  // namespace

Group init(InitOptions options) try {
  open_standard_descriptors();
  const Knobs knobs = Knobs::from_environment();
  const std::chrono::milliseconds timeout = timeout_of(options, knobs);
  const Identity who = Identity::from_environment();
  check_group_size(who.size);
  if (who.size > 1) set_log_rank(who.rank);
  const std::string name = who.size == 1 ? "shm" : choose_engine(knobs, who);
  auto engine = make_engine(name, who, knobs);
  if (engine->size() != who.size)
    throw UsageError("the " + name + " engine has " + std::to_string(engine->size()) + " workers, but " +
                     who.launcher + " started " + std::to_string(who.size) +
                     "; start the job with mpirun to use MPI, or choose another LOCKSTEP_ENGINE");
  return Group(GroupImpl::make(std::move(engine), "world", who.job, timeout));
} catch (const std::bad_alloc&) {
  throw SystemError("cannot join the other workers: out of memory (ulimit -v limits it)");
}

std::vector<Group> thread_groups(int size, InitOptions options, std::vector<int> nodes) {
  check_group_size(size);
  const Knobs knobs = Knobs::from_environment();
  if (nodes.empty()) nodes = nodes_of(size, knobs.node_size);
  if (nodes.size() != static_cast<std::size_t>(size))
    throw UsageError("thread_groups got " + std::to_string(nodes.size()) + " nodes for " +
                     std::to_string(size) + " ranks");
  for (int node : nodes)
    if (node < 0)
      throw UsageError("thread_groups got node " + std::to_string(node) + "; accepted: 0 and above");
  std::vector<Group> groups;
  for (auto& engine : local_threads("world", std::move(nodes), knobs))
    groups.emplace_back(GroupImpl::make(std::move(engine), "world", "threads", timeout_of(options, knobs)));
  return groups;
}

}  // namespace lockstep
