// What the workers of a run compute with, beside its options: kept in every checkpoint, and compared.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/group.h"

namespace lockstep {

struct RunArithmetic {
  Metadata facts = {};                    // rank 0's (checkpoint/state.h)
  std::vector<std::string> remarks = {};  // on rank 0: one line each, of what is not the same
};

// Where ranks differ, or the run goes on from a checkpoint (empty: none) of another library or processor, its
// bits are not those of one run, and that is said. Collective; throws on every rank.
RunArithmetic look_at_arithmetic(const Group& world, const std::filesystem::path& checkpoint);

}  // namespace lockstep
