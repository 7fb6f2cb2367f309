// A training step with and without synchronisation, interleaved in one run: what `lockstep bench step`
// measures, for a model and a loss of your own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "lockstep/train/trainer.h"

namespace lockstep {

// Medians over all steps of all workers, the same on every rank; comm_fraction is this rank's.
struct StepBenchResult {
  double step_ms = 0, step_ms_p95 = 0;    // gradients are exchanged
  double alone_ms = 0, alone_ms_p95 = 0;  // each worker for itself
  // Alone, but all begin each step together: what is lost to waiting for the slowest, and to all using the
  // memory at the same moment, before a single byte is exchanged.
  double in_phase_ms = 0;
  double comm_fraction = 0;  // of the work of a synchronized step
  double bucket_cap_mb = 0;
  // By the group's cost table, from steps in phase; none where the exchange or the engine can't say.
  std::optional<double> predicted_step_ms = {}, predicted_comm_fraction = {};
  double efficiency() const { return alone_ms / step_ms; }
};

// Trains `model` on `batch`, this worker's, again and again: options.steps steps of each kind, in turns of a
// few. Of the task its loss and forward count, of the options strategy, optimizer and rate. `progress` is
// told how many steps of each kind are done. Collective; throws Error.
StepBenchResult bench_steps(const ModuleRef& model, const Task& task, const Batch& batch,
                            const TrainerOptions& options, const Group& world,
                            const std::function<void(std::int64_t done)>& progress = {});

}  // namespace lockstep
