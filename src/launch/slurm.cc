#include "launch/slurm.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {
namespace {

std::optional<std::string> first_of(const Lookup& environment, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (auto value = environment(name); value && !value->empty()) return value;
  return std::nullopt;
}

// The number that `name` holds. Throws UsageError unless it is one, 0 to `most`.
int number(const std::string& name, const std::string& text, int most) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > most)
    throw UsageError(name + "='" + text + "' is no number from 0 to " + std::to_string(most) +
                     "; SLURM sets it; --nnodes, --node-rank and --rdzv-endpoint say the same by hand");
  return value;
}

// Like number(), for identifiers of any size: only where they fall among `count` matters.
unsigned place(const std::string& text, unsigned count) {
  unsigned value = 0;
  for (const char c : text) value = (value * 31 + static_cast<unsigned char>(c)) % count;
  return value;
}

// srun makes a step; a batch script merely inherits the allocation's variables.
std::optional<std::string> step_of(const Lookup& environment) {
  const auto step = first_of(environment, {"SLURM_STEP_ID", "SLURM_STEPID"});
  if (!step || !environment("SLURM_PROCID")) return std::nullopt;
  for (const char* special : {"4294967290", "4294967291", "4294967292", "batch", "interactive", "extern"})
    if (*step == special) return std::nullopt;
  return step;
}

bool is_host(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_' || c == ':';
  });
}

}  // namespace

std::string first_slurm_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    const std::size_t close = list.find(']');
    if (close == std::string_view::npos) return "";
    // The first number of the brackets: up to a comma, a dash or their end.
    const std::string_view inside = list.substr(1, close - 1);
    const std::string_view first = inside.substr(0, inside.find_first_of(",-"));
    if (first.empty() || first.find_first_not_of("0123456789") != std::string_view::npos) return "";
    host += first;
    list.remove_prefix(close + 1);
  }
  return is_host(host) ? host : "";
}

std::optional<SlurmNodes> slurm_nodes(const Lookup& environment) {
  const auto step = step_of(environment);
  const auto nodes = first_of(environment, {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"});
  const auto node = first_of(environment, {"SLURM_NODEID"});
  if (!step || !nodes || !node) return std::nullopt;
  SlurmNodes result;
  result.nodes = number("SLURM_NNODES", *nodes, kMostNodes);
  if (result.nodes < 2) return std::nullopt;
  const auto tasks = first_of(environment, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  const bool one_each =
      tasks ? *tasks == *nodes : first_of(environment, {"SLURM_NTASKS_PER_NODE"}) == std::string("1");
  if (!one_each) return std::nullopt;
  result.node = number("SLURM_NODEID", *node, result.nodes - 1);
  const std::string list =
      first_of(environment, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}).value_or("");
  const std::string host = first_slurm_host(list);
  if (host.empty())
    throw UsageError("SLURM_STEP_NODELIST='" + list +
                     "' is not understood; accepted: SLURM's form, for example node[01-03,7], or "
                     "--nnodes, --node-rank and --rdzv-endpoint by hand");
  // Below the ports that the system hands out by itself.
  constexpr unsigned first_port = 15000;
  constexpr unsigned ports = 15000;
  const std::string job = first_of(environment, {"SLURM_JOB_ID", "SLURM_JOBID"}).value_or("0");
  result.endpoint = host + ":" + std::to_string(first_port + place(job + "." + *step, ports));
  return result;
}

std::optional<SlurmNodes> slurm_nodes() {
  return slurm_nodes([](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  });
}

}  // namespace lockstep::launcher
