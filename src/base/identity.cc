#include "lockstep/base/identity.h"

#include <unistd.h>

#include <charconv>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/slurm.h"

namespace lockstep {
namespace {

constexpr int kMostRanks = 1 << 24;  // anything above is a typing error, not a job

bool is_set(const char* name) { return read_variable(name).has_value(); }

// "RANK=3"
std::string shown(const char* name) { return std::string(name) + "=" + read_variable(name).value_or(""); }

int number(const char* name) {
  const std::string text = read_variable(name).value_or("");
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > kMostRanks)
    throw UsageError(std::string(name) + "='" + text +
                     "' is not understood; accepted: a whole number from 0 to " + std::to_string(kMostRanks));
  return value;
}

// All of a family's variables must be there, or the worker would guess who it is.
void require(const char* family, std::initializer_list<const char*> needed) {
  std::string set;
  std::string missing;
  for (const char* name : needed) {
    std::string& list = is_set(name) ? set : missing;
    list += (list.empty() ? "" : ", ") + (is_set(name) ? shown(name) : std::string(name));
  }
  if (missing.empty()) return;
  throw UsageError(std::string(family) + " variables are half set: " + (set.empty() ? "none" : set) +
                   " set, but " + missing + " missing; set all of them or none");
}

// The names of one launcher's variables.
struct Family {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

void check_below(const char* index, int value, const char* count, int limit) {
  if (limit < 1) throw UsageError(shown(count) + " is not understood; accepted: at least 1");
  if (value >= limit)
    throw UsageError(shown(index) + " does not fit " + count + "=" + std::to_string(limit) +
                     "; accepted: 0 to " + std::to_string(limit - 1));
}

// Ranks and sizes of a family whose local variables may be absent together: then all workers are
// taken to be on this machine.
Identity read_family(const Family& family) {
  require(family.launcher, {family.rank, family.size});
  Identity identity;
  identity.launcher = family.launcher;
  identity.rank = number(family.rank);
  identity.size = number(family.size);
  check_below(family.rank, identity.rank, family.size, identity.size);
  identity.local_rank = identity.rank;
  identity.local_size = identity.size;
  if (is_set(family.local_rank) || is_set(family.local_size)) {
    require(family.launcher, {family.local_rank, family.local_size});
    identity.local_rank = number(family.local_rank);
    identity.local_size = number(family.local_size);
    check_below(family.local_rank, identity.local_rank, family.local_size, identity.local_size);
    if (identity.local_size > identity.size)
      throw UsageError(shown(family.local_size) + " is more than " + shown(family.size) +
                       "; accepted: at most as many workers on this machine as in the job");
  }
  return identity;
}

// Joins the values of those variables that are set.
std::string joined(std::initializer_list<const char*> names) {
  std::string text;
  for (const char* name : names)
    if (const auto value = read_filled_variable(name)) text += (text.empty() ? "" : ".") + *value;
  return text;
}

// Where a launcher says nothing about the job, its workers on this machine still share a parent.
std::string parent() { return "parent" + std::to_string(::getppid()); }

Identity from_torchrun() {
  const bool ours = is_set("LOCKSTEP_JOB");
  if (ours && !is_set("RANK") && !is_set("WORLD_SIZE"))
    throw UsageError(shown("LOCKSTEP_JOB") +
                     " is set, but RANK and WORLD_SIZE are missing: left over from a job of lockstep run? "
                     "accepted: all of them, as lockstep run sets them, or none (unset LOCKSTEP_JOB)");
  Identity identity = read_family({.launcher = ours ? "lockstep run" : "torchrun",
                                   .rank = "RANK",
                                   .size = "WORLD_SIZE",
                                   .local_rank = "LOCAL_RANK",
                                   .local_size = "LOCAL_WORLD_SIZE"});
  if (const auto job = read_variable("LOCKSTEP_JOB")) {
    if (job->empty())
      throw UsageError("LOCKSTEP_JOB is set but empty; accepted: the text that lockstep run sets");
    identity.launcher = "lockstep run";
    identity.job = *job + "." + read_variable("LOCKSTEP_RESTART").value_or("0");
    return identity;
  }
  identity.job = joined({"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"});
  if (identity.job.empty()) identity.job = parent();
  identity.job = "torchrun." + identity.job;
  return identity;
}

Identity from_open_mpi() {
  Identity identity = read_family({.launcher = "Open MPI",
                                   .rank = "OMPI_COMM_WORLD_RANK",
                                   .size = "OMPI_COMM_WORLD_SIZE",
                                   .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
                                   .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE"});
  std::string job = joined({"PMIX_NAMESPACE"});
  if (job.empty()) job = joined({"OMPI_MCA_ess_base_jobid"});
  identity.job = "openmpi." + (job.empty() ? parent() : job);
  return identity;
}

// SLURM writes the tasks of each node as "4(x2),3": two nodes with 4, one with 3.
int slurm_tasks_on_node(const char* name, int node) {
  const std::string text = read_variable(name).value_or("");
  std::string_view rest = text;
  const auto take = [&rest](int& value) {
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc()) return false;
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return true;
  };
  int first = 0;
  while (!rest.empty()) {
    int tasks = 0;
    int nodes = 1;
    if (!take(tasks)) break;
    if (rest.starts_with("(x")) {
      rest.remove_prefix(2);
      if (!take(nodes) || !rest.starts_with(")")) break;
      rest.remove_prefix(1);
    }
    first += nodes;
    if (node < first) return tasks;
    if (!rest.starts_with(",")) break;
    rest.remove_prefix(1);
  }
  throw UsageError(shown(name) + " does not say how many tasks node " + std::to_string(node) +
                   " has; accepted: SLURM's form, for example 4(x2),3");
}

Identity from_slurm() {
  const char* const size = is_set("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  const char* const per_node =
      is_set("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  require("SLURM", {"SLURM_JOB_ID", "SLURM_PROCID", size, "SLURM_LOCALID", "SLURM_NODEID", per_node});
  Identity identity;
  identity.launcher = "SLURM";
  identity.rank = number("SLURM_PROCID");
  identity.size = number(size);
  check_below("SLURM_PROCID", identity.rank, size, identity.size);
  identity.local_rank = number("SLURM_LOCALID");
  identity.local_size = slurm_tasks_on_node(per_node, number("SLURM_NODEID"));
  check_below("SLURM_LOCALID", identity.local_rank, per_node, identity.local_size);
  identity.job =
      "slurm." + joined({"SLURM_JOB_ID", is_set("SLURM_STEP_ID") ? "SLURM_STEP_ID" : "SLURM_STEPID"});
  return identity;
}

Identity from_pmi() {
  const bool hydra = is_set("MPI_LOCALRANKID") || is_set("MPI_LOCALNRANKS");
  Identity identity = read_family({.launcher = "PMI",
                                   .rank = "PMI_RANK",
                                   .size = "PMI_SIZE",
                                   .local_rank = hydra ? "MPI_LOCALRANKID" : "PMI_LOCAL_RANK",
                                   .local_size = hydra ? "MPI_LOCALNRANKS" : "PMI_LOCAL_SIZE"});
  const std::string job = joined({"PMI_JOBID", "PMI_KVSNAME", "PMI_PORT"});
  identity.job = "pmi." + (job.empty() ? parent() : job);
  return identity;
}

bool any_set(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (is_set(name)) return true;
  return false;
}

}  // namespace

Identity Identity::from_environment() {
  if (any_set(
          {"LOCKSTEP_JOB", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}))
    return from_torchrun();
  if (any_set({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})) return from_open_mpi();
  if (slurm::step_of(read_variable)) return from_slurm();
  if (any_set({"PMI_RANK", "PMI_SIZE"})) return from_pmi();
  return {};
}

}  // namespace lockstep
