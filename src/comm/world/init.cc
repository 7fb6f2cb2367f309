#include "lockstep/comm/init.h"

#include <unistd.h>

#include <algorithm>
#include <new>

#include "comm/call/nodes.h"
#include "comm/call/rank_mask.h"
#include "comm/engine/membership.h"
#include "comm/engine/node_engine.h"
#include "comm/engine/registry.h"
#include "comm/tune/calibrate.h"
#include "comm/world/group_impl.h"
#include "comm/world/local_world.h"
#include "comm/world/tcp_world.h"
#include "comm/world/work_state.h"
#include "lockstep/base/identity.h"
#include "lockstep/base/knobs.h"
#include "lockstep/base/log.h"
#include "lockstep/base/standard_fds.h"
#include "net/secret.h"

namespace lockstep {
namespace {

// `given`, or what the knob says.
std::chrono::milliseconds time_of(std::chrono::milliseconds given, const char* field, const char* knob,
                                  std::chrono::milliseconds otherwise) {
  if (given.count() < 0)
    throw UsageError(std::string("InitOptions::") + field + " of " + std::to_string(given.count()) +
                     " ms; accepted: positive, or zero for " + knob);
  return given.count() > 0 ? std::min(given, kLongestTimeout) : otherwise;
}

std::chrono::milliseconds timeout_of(const InitOptions& options, const Knobs& knobs) {
  return time_of(options.timeout, "timeout", "LOCKSTEP_TIMEOUT_S", knobs.timeout);
}

Knobs knobs_for(const InitOptions& options) {
  Knobs knobs = Knobs::from_environment();
  (void)timeout_of(options, knobs);  // refused before anybody is waited for
  knobs.init_timeout =
      time_of(options.init_timeout, "init_timeout", "LOCKSTEP_INIT_TIMEOUT_S", knobs.init_timeout);
  return knobs;
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

// What `auto` means for this group.
std::string choose_engine(const Knobs& knobs, const Membership& who, bool started_by_mpi) {
  if (who.size == 1) return "shm";
  if (knobs.engine == "auto") {
    if (who.one_machine) return "shm";
    return who.whole_job && started_by_mpi && find_engine("mpi") != nullptr ? "shm+mpi" : "shm+tcp";
  }
  if (!who.whole_job && (knobs.engine == "mpi" || knobs.engine == "shm+mpi"))
    throw UsageError("form_group: LOCKSTEP_ENGINE=" + knobs.engine +
                     ", whose ranks are those that mpirun started; accepted: auto, shm, tcp, gloo, shm+tcp, "
                     "shm+gloo, or Group::split");
  return knobs.engine;
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

// Gloo finds its peers through an engine that exists.
std::unique_ptr<Engine> split_for_gloo(Engine& flat, int colour, int key, const std::string& group,
                                       const Call& call) {
  auto column = flat.split(colour, key, group, call);
  return column == nullptr ? nullptr : engine_kind("gloo").make(std::move(column));
}

// Under which the workers of one machine find each other. Its socket's name is for everybody to see, and to
// take first where it can be guessed: with a secret it can't. Launchers of ours give one.
std::string door_of(const Membership& who) {
  const auto secret = net::Secret::from_environment();
  return secret ? secret->derive("rendezvous on one machine, job " + who.label()).hex() : who.label();
}

// Shared memory inside the nodes that the flat engine knows.
std::unique_ptr<Engine> with_nodes(const char* name, std::unique_ptr<Engine> flat, const Membership& who,
                                   const Knobs& knobs, const AcrossMaker& across) {
  const auto members = members_of_nodes(flat->nodes());
  for (std::size_t m = 0; m < members.size(); ++m) {
    const auto at = std::find(members[m].begin(), members[m].end(), flat->rank());
    if (at == members[m].end()) continue;
    const int local = static_cast<int>(members[m].size());
    Membership here = who;
    here.rank = static_cast<int>(at - members[m].begin());
    here.size = local;
    auto inside = local_world(door_of(who) + ".node" + std::to_string(m), here,
                              std::vector<int>(members[m].size(), static_cast<int>(m)), knobs);
    if (local > 1) load_or_measure_costs(*inside);
    return NodeEngine::make(name, std::move(flat), std::move(inside), across, who.group,
                            internal_split(knobs));
  }
  throw SystemError("rank " + std::to_string(flat->rank()) + " is on no node");
}

std::unique_ptr<Engine> make_engine(const std::string& name, const Membership& who, const Knobs& knobs) {
  if (name == "shm") {
    if (!who.one_machine && who.size > 1)
      throw UsageError(
          (who.whole_job
               ? "LOCKSTEP_ENGINE=shm, but of this job's " + std::to_string(who.size) + " workers only " +
                     std::to_string(who.ranks_here) + " are on this machine"
               : "LOCKSTEP_ENGINE=shm, but members of group " + who.group + " may be on several machines") +
          "; accepted for several machines: auto, tcp, mpi, gloo, shm+tcp, shm+mpi, shm+gloo");
    auto engine = local_world(door_of(who), who, nodes_of(who.size, knobs.node_size), knobs);
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
  return gloo.make(make_engine(who.one_machine ? "shm" : "tcp", who, knobs));
}

Group form(const Membership& who, const Identity& identity, const InitOptions& options,
           const Knobs& knobs) try {
  if (inside_continuation())
    throw UsageError(std::string(who.whole_job ? "init" : "form_group") +
                     " inside a function given to then() or on_done(), where nothing may wait; accepted: "
                     "outside of it");
  check_group_size(who.size);
  const std::string name = choose_engine(knobs, who, identity.started_by_mpi());
  auto engine = make_engine(name, who, knobs);
  if (engine->size() != who.size)
    throw UsageError("the " + name + " engine has " + std::to_string(engine->size()) + " workers, but " +
                     who.launcher + " started " + std::to_string(who.size) +
                     "; start the job with mpirun to use MPI, or choose another LOCKSTEP_ENGINE");
  return GroupImpl::make(std::move(engine), who.group, who.job, timeout_of(options, knobs));
} catch (const std::bad_alloc&) {
  throw SystemError("cannot join the other workers: out of memory (ulimit -v limits it)");
}

void check(const GroupPlan& plan) {
  constexpr std::size_t kLongestId = 200;
  if (plan.id.empty() || plan.id.size() > kLongestId || plan.id != one_line(plan.id))
    throw UsageError("form_group: the id '" + one_line(plan.id.substr(0, kLongestId)) +
                     "'; accepted: a line of 1 to " + std::to_string(kLongestId) + " characters");
  if (plan.size < 1)
    throw UsageError("form_group: group " + plan.id + " of " + std::to_string(plan.size) +
                     " members; accepted: at least 1");
  if (plan.rank < 0 || plan.rank >= plan.size)
    throw UsageError("form_group: rank " + std::to_string(plan.rank) + " of group " + plan.id +
                     "; accepted: 0 to " + std::to_string(plan.size - 1));
}

}  // namespace

Group init(InitOptions options) {
  open_standard_descriptors();
  const Knobs knobs = knobs_for(options);
  const Identity identity = Identity::from_environment();
  if (identity.size > 1) set_log_rank(identity.rank);
  return form({.rank = identity.rank,
               .size = identity.size,
               .job = identity.job,
               .launcher = identity.launcher,
               .one_machine = identity.local_size == identity.size,
               .ranks_here = identity.local_size},
              identity, options, knobs);
}

Group form_group(const GroupPlan& plan, InitOptions options) {
  open_standard_descriptors();
  const Knobs knobs = knobs_for(options);
  check(plan);
  const Identity identity = Identity::from_environment();
  const bool one_machine = identity.local_size == identity.size && plan.endpoint.empty();
  // Without a launcher there is nothing that several processes would share.
  const std::string job = identity.job.empty() ? "process " + std::to_string(::getpid()) : identity.job;
  return form({.group = plan.id,
               .rank = plan.rank,
               .size = plan.size,
               .job = job,
               .launcher = identity.launcher,
               .whole_job = false,
               .one_machine = one_machine,
               .ranks_here = one_machine ? plan.size : std::min(plan.size, identity.local_size),
               .endpoint = plan.endpoint},
              identity, options, knobs);
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
    groups.push_back(GroupImpl::make(std::move(engine), "world", "threads", timeout_of(options, knobs)));
  return groups;
}

}  // namespace lockstep
