// Text from a model that has learnt to foretell bytes.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/models/models.h"

namespace lockstep {

struct GenerateOptions {
  std::string prompt = "\n";  // what it goes on with; not empty
  std::int64_t bytes = 200;
  double temperature = 1;  // of the choice among the next bytes; 0: always the likeliest
  std::uint64_t seed = 0;
  std::int64_t context = 0;  // bytes that the model sees at most: the last ones
};

// The bytes behind the prompt: the same for the same weights and options.
std::string generate(Model& model, const GenerateOptions& options);

}  // namespace lockstep
