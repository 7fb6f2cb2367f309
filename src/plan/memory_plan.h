// Will it fit? What each stage of sharding a model's state would take on a worker, against its memory.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/offload/offload.h"
#include "plan/memory.h"

namespace lockstep {

struct MemoryQuestion {
  std::string model = {};  // "gpt"; empty: only its size is known
  ModelSize size = {};
  std::string precision = "fp32";
  std::string optimizer = "adamw";
  int lanes = 1;        // of the run
  StateForm form = {};  // of the worker with the most lanes; for every stage below
  std::vector<int> stages = {0, 1, 2, 3};
  bool in_nodes = false;     // stage 3 is hybrid-shard: in shards inside of machines
  std::string offload = {};  // the folder where form says what is to lie; empty: all in memory
  double disk_rate = 0;      // of that folder, read and written at once, bytes a second; of all workers
  double disk_passes = 1;    // that a step makes over the state, in times of one that does both
  double params_passes = 0;  // likewise over parameters on disk
  OffloadPath disk_path = OffloadPath::direct;
  double memory_bytes = 0;   // of a worker
  bool memory_given = true;  // false: it is this machine's, in equal parts
};

struct StageMemory {
  int stage = 0;
  std::string strategy = {};
  StateBytes bytes = {};
  double disk_ms = 0;  // that a step should take longer for what is on disk
  bool fits = false;   // and can be run
};

struct MemoryPlan {
  MemoryQuestion question;
  std::vector<StageMemory> stages = {};
  std::vector<std::string> notes = {};  // what the figures do not say by themselves, a line each
};

MemoryPlan plan_memory(const MemoryQuestion& question);
nlohmann::ordered_json to_json(const MemoryPlan& plan);
// For people: the question in lines, the table, what fits, the notes. Sizes are decimal, as in the paper:
// 1 GB is 10^9 bytes.
std::string describe(const MemoryPlan& plan, bool colours);

}  // namespace lockstep
