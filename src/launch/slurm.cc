#include "launch/slurm.h"

#include <algorithm>
#include <charconv>

#include "base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {
namespace {

// The number that `name` holds. Throws UsageError unless it is one, 0 to `most`.
int variable_as_number(const std::string& name, const std::string& text, int most) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > most)
    throw UsageError(name + "='" + text + "' is no number from 0 to " + std::to_string(most) +
                     "; SLURM sets it; --nnodes, --node-rank and --rdzv-endpoint say the same by hand");
  return value;
}

}  // namespace

std::optional<SlurmNodes> slurm_nodes(const slurm::Lookup& environment) {
  const auto step = slurm::step_of(environment);
  const auto nodes = slurm::first_of(environment, {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"});
  const auto node = slurm::first_of(environment, {"SLURM_NODEID"});
  if (!step || !nodes || !node) return std::nullopt;
  SlurmNodes result;
  result.nodes = variable_as_number("SLURM_NNODES", *nodes, kMostNodes);
  if (result.nodes < 2) return std::nullopt;
  const auto tasks = slurm::first_of(environment, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  const bool one_each =
      tasks ? *tasks == *nodes : slurm::first_of(environment, {"SLURM_NTASKS_PER_NODE"}) == std::string("1");
  if (!one_each) return std::nullopt;
  result.node = variable_as_number("SLURM_NODEID", *node, result.nodes - 1);
  result.endpoint = slurm::endpoint(environment);
  return result;
}

std::optional<SlurmNodes> slurm_nodes() { return slurm_nodes(read_variable); }

}  // namespace lockstep::launcher
