// `lockstep plan memory` as it was asked: the options of a run, and what is said of the model's size and of
// the workers' memory. The answer needs the model's size: that of --params is a number; that of a model of
// ours is counted by the program that can make one.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "plan/memory.h"
#include "recipe/train_options.h"

namespace lockstep {

// The options of a run that its model state depends on.
extern const Given kMemoryOptions;

struct MemoryRequest {
  TrainOptions options = {};
  std::string params = {};  // "7.5B"; empty: options.model is counted
  std::string unit_params =
      {};                     // of the largest unit, were stage 3 to gather; empty: a block's, or not known
  std::string memory = {};    // "24G" a worker; empty: this machine's, or its GPUs', in equal parts
  std::int64_t machines = 1;  // with as many workers each
  std::string stage = {};     // empty: all
  bool gpu = false;           // the memory is that of GPUs
  bool one_gpu = false;       // which all workers share
  struct Gpus {
    int count = 0;
    double bytes = 0;  // of each
  } gpus = {};         // of this machine, by who can see them
  bool json = false;
};

// Can it be answered without libtorch?
inline bool is_arithmetic(const MemoryRequest& request) {
  return !request.params.empty() && !(request.gpu && request.memory.empty());
}

// Fills in what follows from other options, workers and lanes too. Throws UsageError. `given`: the options
// that were written.
void settle(MemoryRequest& request, const Given& given);

// For the other program, once it is settled.
nlohmann::ordered_json to_json(const MemoryRequest& request);
MemoryRequest memory_request(const nlohmann::ordered_json& json);

// Of --params.
ModelSize size_in_params(const MemoryRequest& request);
// What is printed: lines and a table, or one JSON object.
std::string answer(const MemoryRequest& request, ModelSize size, bool colours);

}  // namespace lockstep
