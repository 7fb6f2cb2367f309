// What an exchange of gradients remembers (Exchange::state), in a checkpoint: exchange.safetensors.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/grad/exchange.h"
#include "train/saved_state.h"

namespace lockstep {

// Nothing where the exchange remembers nothing. Collective.
void add_exchange(SavedState& state, const Exchange& exchange);

// Gives the exchange of every rank what the checkpoint of rank 0 has, and tells what there is to say about
// it: that one remembers what the other can't take up. Collective.
std::string load_exchange(const std::filesystem::path& checkpoint, const Exchange& exchange,
                          const Group& world);

}  // namespace lockstep
