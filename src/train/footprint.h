// What a run holds and sends: the memory of its model state, predicted and accounted, and bytes on the wire.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/parallel/strategy.h"
#include "lockstep/train/trainer.h"
#include "plan/memory.h"
#include "train/optimizer.h"

namespace lockstep {

// From the parameters' number and types alone, as a plan does (plan/memory.h). Buckets are a little larger:
// they are aligned.
StateBytes predict_state_bytes(const TrainerOptions& options, const Strategy& strategy);

// Of the summary. `resident_before`: memory before the model was made. Collective.
nlohmann::ordered_json memory_figures(const TrainerOptions& options, const Strategy& strategy,
                                      const TrainOptimizer& optimizer, std::int64_t resident_before);
// Sent by all workers in a step (StepLoop::wire_bytes); null where a library sends by itself. Collective.
nlohmann::ordered_json wire_bytes_a_step(const Group& world, std::optional<std::uint64_t> sent_here);

}  // namespace lockstep
