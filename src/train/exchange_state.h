// What an exchange of gradients remembers (Exchange::state), in a checkpoint: exchange.safetensors.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/grad/exchange.h"

namespace lockstep {

// By rank 0 alone; nothing where the exchange remembers nothing.
void save_exchange(const std::filesystem::path& checkpoint, const Exchange& exchange, const TensorMap& state);

// Gives the exchange of every rank what the checkpoint of rank 0 has, and tells what there is to say about
// it: that one remembers what the other can't take up. Collective.
std::string load_exchange(const std::filesystem::path& checkpoint, const Exchange& exchange,
                          const Group& world);

}  // namespace lockstep
