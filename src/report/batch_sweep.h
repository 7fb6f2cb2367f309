// What a sweep over batches found, for files and for people.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/report/noise_scale.h"

namespace lockstep {

struct BatchSweepRow {
  std::int64_t factor = 1;  // of the base batch
  std::int64_t batch = 0;
  std::string recipe;
  std::string precision;
  std::int64_t steps = 0;
  std::int64_t warmup_steps = 0;
  double lr = 0;
  // At the end; nothing of a run whose loss became infinite or no number.
  std::optional<double> accuracy = {};
  std::optional<double> validation_loss = {};
  std::optional<double> final_loss = {};
  double train_s = 0;  // of all steps, without evaluation and start
  std::optional<NoiseFigures> noise = {};
  std::string params_sha256 = {};
};

// The results of a run, from its folder; what it was is the caller's to fill in. `finished`: it came to its
// end; otherwise it stopped, and stopped_not_finite() says why. Throws UsageError and SystemError for files
// that can't be read.
BatchSweepRow read_batch_run(const std::filesystem::path& folder, bool finished);
// The last step in the folder's steps.csv had a loss that is not finite.
bool stopped_not_finite(const std::filesystem::path& folder);

// Up to which factor the recipe holds: the accuracy at each factor up to it is at most `points` percentage
// points below that of `fixed` at the smallest. 0: at none, or there is nothing to compare with.
std::int64_t held_to(const std::vector<BatchSweepRow>& rows, const std::string& recipe,
                     const std::string& precision, double points);

std::string batch_sweep_csv(const std::vector<BatchSweepRow>& rows);
// An SVG document: accuracy, validation loss and time, one line a recipe.
std::string batch_sweep_plot(const std::vector<BatchSweepRow>& rows);
// A page by itself; `command` is what made it.
std::string batch_sweep_page(const std::vector<BatchSweepRow>& rows, const std::string& title,
                             const std::string& command);
std::string batch_sweep_table(const std::vector<BatchSweepRow>& rows, bool colours);
nlohmann::ordered_json to_json(const BatchSweepRow& row);

}  // namespace lockstep
