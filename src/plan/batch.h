// How large a batch, and how many workers, still help: from the noise scale that a run has measured.
//
// To come as far as the run, a batch of B needs (McCandlish et al. 2018)
//
//   steps    S(B) = S_min · (1 + C / B)        examples  E(B) = E_min · (1 + B / C)        E_min = C · S_min
//
// where C is the critical batch, which the noise scale stands for. Below C twice the batch nearly halves the
// steps; above it, it nearly doubles the examples and saves few steps. The model knows no time: that twice
// the workers do twice the examples a second is taken for granted, and that the learning rate suits each
// batch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/report/noise_scale.h"

namespace lockstep {

// What the advice is made from.
struct MeasuredRun {
  std::string model = {};
  std::string data = {};
  std::int64_t batch = 0;  // examples of a step
  std::int64_t workers = 1;
  std::int64_t steps = 0;  // so far
  NoiseFigures noise = {};
};

// From the folder of a run that was trained with --measure noise, also one that still goes on. Throws
// UsageError that says what is missing.
MeasuredRun read_measured_run(const std::filesystem::path& folder);

// S(B) as a multiple of S_min, and E(B) of E_min, at a critical batch that may be 0 or infinity: then there
// is no fewest number, and both are infinite in one of them.
double steps_over_fewest(double batch, double critical);
double examples_over_fewest(double batch, double critical);

// A multiple of the run's batch, by as many times its workers.
struct BatchRow {
  double factor = 1;
  double batch = 0;
  double workers = 0;
  double steps = 0;       // to come as far as the run
  double examples = 0;    // likewise
  double speed_up = 1;    // over the run's own batch, if a worker's step takes as long as before
  double efficiency = 1;  // speed_up / factor: the part of the work that is not for speed alone
  // Of efficiency, by the noise scale's uncertainty.
  double efficiency_low = 1;
  double efficiency_high = 1;
};

struct BatchAdvice {
  MeasuredRun run;
  double worker_batch = 0;  // examples of one worker in a step
  // Workers whose batches together are the critical one: half of their work saves examples, half saves time.
  // At least one; infinity where the scale is; low and high NaN where they are not known.
  double workers = 1;
  double workers_low = 1;
  double workers_high = 1;
  // 1×, 2×, 4× … the run's batch, to well beyond the critical one, or as long as that is a step at least.
  std::vector<BatchRow> rows = {};
};

BatchAdvice advise_on_batch(const MeasuredRun& run);
nlohmann::ordered_json to_json(const BatchAdvice& advice);
// For people: the advice in lines, then the table.
std::string describe(const BatchAdvice& advice, bool colours);

}  // namespace lockstep
