#include "plan/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "lockstep/base/error.h"
#include "report/noise_json.h"
#include "report/table.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kFewestRows = 5;
constexpr int kMostRows = 14;
constexpr double kWellBeyond = 4;  // times the critical batch: there four fifths of the work are for speed

Json read_object(const fs::path& file) {
  Json json = try_json_file<Json>(file);
  return json.is_object() ? json : Json::object();
}

std::int64_t whole(const Json& json, const char* key) {
  const Json value = json.value(key, Json());
  return value.is_number_integer() ? value.get<std::int64_t>() : 0;
}

std::string text(const Json& json, const char* key) {
  const Json value = json.value(key, Json());
  return value.is_string() ? value.get<std::string>() : "?";
}

// Of `factor` times the batch: how much of the work counts as it does at the run's own batch.
double efficiency(double batch, double factor, double critical) {
  if (critical == 0) return 1 / factor;
  return (1 + batch / critical) / (1 + factor * batch / critical);
}

BatchRow row_of(const MeasuredRun& run, double factor) {
  const auto batch = static_cast<double>(run.batch);
  BatchRow row{.factor = factor,
               .batch = factor * batch,
               .workers = factor * static_cast<double>(run.workers),
               .efficiency = efficiency(batch, factor, run.noise.scale),
               .efficiency_low = efficiency(batch, factor, run.noise.low),
               .efficiency_high = efficiency(batch, factor, run.noise.high)};
  row.speed_up = factor * row.efficiency;
  row.steps = static_cast<double>(run.steps) / row.speed_up;
  row.examples = row.steps * row.batch;
  return row;
}

Json or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// "6", "12 345", "any number"
std::string count_of(double number) {
  return std::isfinite(number) ? fmt::format("{:.0f}", std::floor(number)) : "any number";
}

// "4 to 8", "263 or more"
std::string range_of(double low, double high) {
  if (std::isfinite(high)) return fmt::format("{} to {}", count_of(low), count_of(high));
  return std::isfinite(low) ? count_of(low) + " or more" : count_of(low);
}

std::string percent(double part) { return fmt::format("{:.0f} %", 100 * part); }

}  // namespace

MeasuredRun read_measured_run(const fs::path& folder) {
  std::error_code ignored;
  const std::string name = folder.string();
  if (!fs::is_directory(folder, ignored))
    throw UsageError(fmt::format("'{}' is no folder; accepted: the folder of a run", name));
  const Json config = read_object(folder / "config.json");
  MeasuredRun run{.model = text(config, "model"),
                  .data = text(config, "data"),
                  .batch = whole(config, "lanes") * whole(config, "lane_batch"),
                  .workers = std::max<std::int64_t>(1, whole(config, "workers"))};
  if (run.batch < 1)
    throw UsageError(
        fmt::format("{} holds no run: its config.json is missing, or says nothing of lanes; accepted: "
                    "the folder of a run",
                    name));
  const NoiseScale noise = read_noise(folder);
  const auto figures = noise.figures();
  if (!figures)
    throw UsageError(fmt::format(
        "the run in {} has measured no noise; accepted: one that was trained with --measure noise", name));
  run.noise = *figures;
  run.steps = noise.steps();
  return run;
}

double steps_over_fewest(double batch, double critical) { return 1 + critical / batch; }

double examples_over_fewest(double batch, double critical) {
  return critical == 0 ? INFINITY : 1 + batch / critical;
}

BatchAdvice advise_on_batch(const MeasuredRun& run) {
  BatchAdvice advice{.run = run,
                     .worker_batch = static_cast<double>(run.batch) / static_cast<double>(run.workers)};
  const auto workers = [&](double critical) {
    return std::isnan(critical) ? critical : std::max(1.0, critical / advice.worker_batch);
  };
  advice.workers = workers(run.noise.scale);
  advice.workers_low = workers(run.noise.low);
  advice.workers_high = workers(run.noise.high);
  for (int i = 0; i < kMostRows; ++i) {
    const BatchRow row = row_of(run, std::exp2(i));
    if (i > 0 && row.steps < 1) break;  // there is no such run
    advice.rows.push_back(row);
    if (i + 1 >= kFewestRows && advice.rows.back().batch >= kWellBeyond * run.noise.scale) break;
  }
  return advice;
}

Json to_json(const BatchAdvice& a) {
  Json rows = Json::array();
  for (const BatchRow& r : a.rows)
    rows.push_back({{"factor", r.factor},
                    {"batch", r.batch},
                    {"workers", r.workers},
                    {"steps", r.steps},
                    {"examples", r.examples},
                    {"speed_up", r.speed_up},
                    {"efficiency", r.efficiency},
                    {"efficiency_low", or_null(r.efficiency_low)},
                    {"efficiency_high", or_null(r.efficiency_high)}});
  return {{"model", a.run.model},
          {"data", a.run.data},
          {"batch", a.run.batch},
          {"run_workers", a.run.workers},
          {"steps", a.run.steps},
          {"critical_batch", to_json(a.run.noise)},
          {"worker_batch", a.worker_batch},
          {"workers", or_null(a.workers)},
          {"workers_low", or_null(a.workers_low)},
          {"workers_high", or_null(a.workers_high)},
          {"rows", rows}};
}

std::string describe(const BatchAdvice& a, bool colours) {
  const auto batch = static_cast<double>(a.run.batch);
  const double critical = a.run.noise.scale;
  const bool known = !std::isnan(a.run.noise.low);
  std::string out = fmt::format("{} on {}: batch {}, {}, {}\n", a.run.model, a.run.data, a.run.batch,
                                counted(a.run.workers, "worker"), counted(a.run.steps, "step"));
  out += fmt::format("critical batch  {} examples{}, over the last {}\n", to_string(a.run.noise),
                     known ? ", 95 %" : "", counted(a.run.noise.steps, "step"));
  if (std::isfinite(critical) && critical > 0)
    out += fmt::format("this batch      {:.2f} × the fewest steps, {:.2f} × the fewest examples\n",
                       steps_over_fewest(batch, critical), examples_over_fewest(batch, critical));
  const bool limited = std::isfinite(a.workers);
  out += fmt::format("workers         {} of {:.0f} examples each{}{}\n",
                     limited ? "up to about " + count_of(a.workers) : count_of(a.workers), a.worker_batch,
                     known ? fmt::format(" ({})", range_of(a.workers_low, a.workers_high)) : "",
                     limited ? "; with more, most of the work is for speed alone" : "");
  Table table({{"batch"}, {"workers"}, {"steps"}, {"examples"}, {"speed-up"}, {"efficiency"}, {"95 %"}});
  for (const BatchRow& r : a.rows) {
    const Style style = r.batch <= critical ? Style::plain : Style::dim;
    table.add_row(
        {{fmt::format("{:.0f}", r.batch), style},
         {fmt::format("{:.0f}", r.workers), style},
         {fmt::format("{:.0f}", std::ceil(r.steps)), style},
         {fmt::format("{:.0f}", std::ceil(r.examples)), style},
         {fmt::format("{:.2f} ×", r.speed_up), style},
         {percent(r.efficiency), style},
         {known ? fmt::format("{} to {}", percent(r.efficiency_low), percent(r.efficiency_high)) : "-",
          style}});
  }
  return out + "\n" + table.render(colours);
}

}  // namespace lockstep
