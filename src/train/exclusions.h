// Which parameters take no weight decay, and with LARS and LAMB no rate of their own:
// TrainerOptions::exclude.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lockstep/grad/gradient_source.h"
#include "lockstep/train/trainer.h"

namespace lockstep {

// Their names. Throws UsageError naming the pattern that no parameter matches.
std::set<std::string> excluded(const TrainerOptions& options, const std::vector<NamedTensor>& parameters);

}  // namespace lockstep
