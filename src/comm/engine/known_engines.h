// The engines that there are, in this build or not: what each declares before there is a group, and how a
// build gets it. Which words LOCKSTEP_ENGINE and --engine take follows from that.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// How the ranks of a new engine find each other.
enum class Meets {
  alone,         // by what each knows of the group (Membership)
  over_another,  // through an engine of the same ranks that works already, its carrier
  by_mpirun,     // they are all that mpirun started, and no others
};

struct EngineProfile {
  const char* name;
  const char* about;  // for people
  Meets meets = Meets::alone;
  bool several_machines = false;  // its ranks may be on several machines; then it can be across nodes, too
  bool inside = false;            // it can be inside nodes, with another across
  bool gpus = false;              // it works on memory of GPUs; then it carries all ranks, by itself
  const char* package = "";       // of the system, and the option of this build, without which it is missing;
  const char* option = "";        // empty: it is always there
};

// In the order in which `auto`, and Gloo for its carrier, take the first that fits.
inline constexpr EngineProfile kKnownEngines[] = {
    {.name = "shm", .about = "the workers of one machine: our algorithms over shared memory", .inside = true},
    {.name = "tcp",
     .about = "any workers: our algorithms over authenticated connections",
     .several_machines = true,
     .inside = true},
    {.name = "mpi",
     .about = "workers that mpirun started: MPI's collectives, and ours over its messages",
     .meets = Meets::by_mpirun,
     .several_machines = true,
     .package = "libopenmpi-dev",
     .option = "LOCKSTEP_MPI"},
    {.name = "gloo",
     .about = "any workers: Gloo's collectives, and ours over its messages",
     .meets = Meets::over_another,
     .several_machines = true,
     .package = "libgloo-dev",
     .option = "LOCKSTEP_GLOO"},
    {.name = "ipc",
     .about = "the workers of one machine on GPUs: they map each other's memory, one kernel a call",
     .meets = Meets::over_another,
     .gpus = true,
     .package = "the CUDA toolkit",
     .option = "LOCKSTEP_CUDA"},
    {.name = "nccl",
     .about = "any workers, each on a GPU of its own: NCCL's collectives, and ours over its messages",
     .meets = Meets::over_another,
     .several_machines = true,
     .gpus = true,
     .package = "libnccl-dev",
     .option = "LOCKSTEP_CUDA"}};

// Null when there is none of that name.
constexpr const EngineProfile* known_engine(std::string_view name) {
  for (const EngineProfile& engine : kKnownEngines)
    if (name == engine.name) return &engine;
  return nullptr;
}

// The engine over all ranks beside which `across` works: itself or, where that needs a carrier, the first of
// `engines` that finds its ranks on several machines. Null: there is none.
inline const EngineProfile* flat_under(const EngineProfile& across, std::span<const EngineProfile> engines) {
  if (across.meets != Meets::over_another) return &across;
  for (const EngineProfile& engine : engines)
    if (engine.meets == Meets::alone && engine.several_machines) return &engine;
  return nullptr;
}

// Why `inside` and `across` can't carry a group together; empty: they can. An engine inside nodes is one that
// finds its ranks on its machine, is carried by a part of the flat one, or is such a part.
inline std::string why_not_composed(const EngineProfile& inside, const EngineProfile& across,
                                    std::span<const EngineProfile> engines) {
  const std::string in = inside.name;
  const std::string out = across.name;
  for (const EngineProfile& one : {inside, across})
    if (one.gpus) return std::string(one.name) + " carries all ranks by itself";
  if (!across.several_machines) return out + " can't be across nodes: its ranks are on one machine";
  if (!inside.inside) return in + " is not made for the inside of nodes";
  const EngineProfile* const flat = flat_under(across, engines);
  if (flat == nullptr) return out + " across nodes has no engine to meet over";
  const bool by_itself = inside.meets == Meets::alone && !inside.several_machines;
  if (!by_itself && inside.meets != Meets::over_another && in != flat->name)
    return in + " inside nodes is a part of " + in + " over all workers, which is not there with " + out +
           " across";
  return {};
}

// "auto", the engines, and the pairs of them that can be composed, as LOCKSTEP_ENGINE names them.
inline std::vector<std::string> engine_words(std::span<const EngineProfile> engines = kKnownEngines) {
  std::vector<std::string> words = {"auto"};
  for (const EngineProfile& engine : engines) words.emplace_back(engine.name);
  for (const EngineProfile& inside : engines)
    for (const EngineProfile& across : engines)
      if (why_not_composed(inside, across, engines).empty())
        words.push_back(std::string(inside.name) + "+" + across.name);
  return words;
}

}  // namespace lockstep
