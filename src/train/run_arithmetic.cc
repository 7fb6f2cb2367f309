#include "train/run_arithmetic.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "checkpoint/stored_tensors.h"
#include "checkpoint/training_files.h"
#include "lockstep/checkpoint/leader.h"
#include "lockstep/checkpoint/state.h"

namespace lockstep {

RunArithmetic look_at_arithmetic(const Group& world, const std::filesystem::path& checkpoint) {
  const std::vector<std::string> all = world.all_gather(nlohmann::json(arithmetic_facts()).dump());
  RunArithmetic found{.facts = nlohmann::json::parse(all[0]).get<Metadata>()};
  for (int rank = 1; rank < world.size() && found.remarks.empty(); ++rank) {
    const auto theirs = nlohmann::json::parse(all[static_cast<std::size_t>(rank)]).get<Metadata>();
    if (const std::string other = other_arithmetic(theirs, found.facts); !other.empty())
      found.remarks.push_back(fmt::format("{} computes with {}: the bits depend on which worker has a lane",
                                          world.named(rank), other));
  }
  if (checkpoint.empty()) return found;
  run_on_leader(world, "reading the checkpoint", [&] {
    const StoredTensors stored(checkpoint, kWeightsFile);
    if (const std::string other = other_arithmetic(stored.metadata(), found.facts); !other.empty())
      found.remarks.push_back(fmt::format("{} was saved by a run with {}: the bits may differ from here on",
                                          checkpoint.string(), other));
  });
  return found;
}

}  // namespace lockstep
