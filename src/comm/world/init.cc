#include "lockstep/comm/init.h"

#include <unistd.h>

#include <algorithm>
#include <new>

#include "comm/call/rank_mask.h"
#include "comm/world/engine_choice.h"
#include "comm/world/group_impl.h"
#include "comm/world/local_world.h"
#include "comm/world/work_state.h"
#include "lockstep/base/identity.h"
#include "lockstep/base/knobs.h"
#include "lockstep/base/log.h"
#include "lockstep/base/standard_fds.h"

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

Group form(const Membership& who, const Identity& identity, const InitOptions& options,
           const Knobs& knobs) try {
  if (inside_continuation())
    throw UsageError(std::string(who.whole_job ? "init" : "form_group") +
                     " inside a function given to then() or on_done(), where nothing may wait; accepted: "
                     "outside of it");
  check_group_size(who.size);
  const EngineChoice choice = choose_engine(knobs, who, identity.started_by_mpi(), options.device);
  auto engine = make_engine(choice, who, knobs);
  if (engine->size() != who.size)
    throw UsageError("the " + choice.word() + " engine has " + std::to_string(engine->size()) +
                     " workers, but " + who.launcher + " started " + std::to_string(who.size) +
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
  if (nodes.empty()) nodes = pretended_nodes(size, knobs);
  if (nodes.size() != static_cast<std::size_t>(size))
    throw UsageError("thread_groups got " + std::to_string(nodes.size()) + " nodes for " +
                     std::to_string(size) + " ranks");
  for (int node : nodes)
    if (node < 0)
      throw UsageError("thread_groups got node " + std::to_string(node) + "; accepted: 0 and above");
  std::vector<Group> groups;
  for (auto& local : local_threads("world", std::move(nodes), knobs)) {
    std::unique_ptr<Engine> engine = std::move(local);
    if (options.device != Device::Kind::cpu) {
      Knobs any = knobs;
      any.engine = "auto";
      Membership who;
      who.rank = engine->rank();
      who.size = size;
      const EngineChoice choice = choose_engine(any, who, false, options.device);
      engine = find_engine(choice.engine.name)->make(who, knobs, std::move(engine));
    }
    groups.push_back(GroupImpl::make(std::move(engine), "world", "threads", timeout_of(options, knobs)));
  }
  return groups;
}

}  // namespace lockstep
