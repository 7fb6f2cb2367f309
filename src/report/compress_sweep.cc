#include "report/compress_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "report/chart.h"
#include "report/table.h"

namespace lockstep {
namespace {

using MaybeNumber = std::optional<double>;

std::string cell_of(const MaybeNumber& value) { return value ? fmt::format("{}", *value) : ""; }
nlohmann::ordered_json json_of(const MaybeNumber& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

// A language model has a loss alone.
bool any_accuracy(const std::vector<CompressSweepRow>& rows) {
  return std::ranges::any_of(rows, [](const CompressSweepRow& row) { return row.run.accuracy.has_value(); });
}

MaybeNumber quality(const CompressSweepRow& row, bool accuracy) {
  if (accuracy) return row.run.accuracy ? MaybeNumber(100 * *row.run.accuracy) : std::nullopt;
  return row.run.validation_loss ? row.run.validation_loss : row.run.final_loss;
}

// One line a method through its batches.
Chart chart_against(const std::vector<CompressSweepRow>& rows, const std::string& what,
                    const std::string& unit, const std::function<MaybeNumber(const CompressSweepRow&)>& x) {
  const bool accuracy = any_accuracy(rows);
  Chart chart{.title = fmt::format("{} against {}", accuracy ? "Accuracy" : "Loss", what),
              .x_title = unit,
              .y_title = accuracy ? "%" : "loss"};
  for (const CompressSweepRow& row : rows) {
    auto series = std::ranges::find(chart.series, row.method, &ChartSeries::name);
    if (series == chart.series.end())
      series = chart.series.insert(series, {.name = row.method, .points = {}});
    if (const MaybeNumber at = x(row)) series->points.emplace_back(*at, quality(row, accuracy).value_or(NAN));
  }
  for (ChartSeries& series : chart.series)
    std::ranges::sort(series.points, {}, &std::pair<double, double>::first);
  return chart;
}

}  // namespace

MaybeNumber CompressSweepRow::wire_bytes() const {
  return wire_bytes_a_step ? MaybeNumber(*wire_bytes_a_step * static_cast<double>(run.steps)) : std::nullopt;
}

MaybeNumber CompressSweepRow::times_less(const std::vector<CompressSweepRow>& rows) const {
  for (const CompressSweepRow& dense : rows)
    if (dense.method == "none" && dense.run.batch == run.batch && dense.wire_bytes_a_step &&
        wire_bytes_a_step.value_or(0) > 0)
      return *dense.wire_bytes_a_step / *wire_bytes_a_step;
  return std::nullopt;
}

MaybeNumber read_wire_bytes(const std::filesystem::path& folder) {
  const auto summary = try_json_file<nlohmann::ordered_json>(folder / "summary.json");
  if (!summary.is_object()) throw UsageError((folder / "summary.json").string() + " is no summary of a run");
  const auto value = summary.value("wire_bytes", nlohmann::ordered_json());
  return value.is_number() ? MaybeNumber(value.get<double>()) : std::nullopt;
}

std::string compress_sweep_csv(const std::vector<CompressSweepRow>& rows) {
  std::string text =
      "method,factor,batch,steps,lr,accuracy,validation_loss,final_loss,wire_bytes_a_step,wire_bytes,times_"
      "less,"
      "train_s,step_ms,params_sha256\n";
  for (const CompressSweepRow& row : rows) {
    const BatchSweepRow& run = row.run;
    text += fmt::format(
        "{},{},{},{},{},{},{},{},{},{},{},{:.3f},{:.3f},{}\n", row.method, run.factor, run.batch, run.steps,
        run.lr, cell_of(run.accuracy), cell_of(run.validation_loss), cell_of(run.final_loss),
        cell_of(row.wire_bytes_a_step), cell_of(row.wire_bytes()), cell_of(row.times_less(rows)), run.train_s,
        1000 * run.train_s / static_cast<double>(std::max<std::int64_t>(1, run.steps)), run.params_sha256);
  }
  return text;
}

std::string compress_sweep_plot(const std::vector<CompressSweepRow>& rows) {
  const auto bytes = chart_against(rows, "bytes sent", "log₂ of bytes, by all workers",
                                   [](const CompressSweepRow& row) -> MaybeNumber {
                                     const double sent = row.wire_bytes().value_or(0);
                                     return sent > 0 ? MaybeNumber(std::log2(sent)) : std::nullopt;
                                   });
  const auto time = chart_against(rows, "time of all steps", "s",
                                  [](const CompressSweepRow& row) { return MaybeNumber(row.run.train_s); });
  return stacked_charts({render_chart(bytes), render_chart(time)});
}

std::string compress_sweep_table(const std::vector<CompressSweepRow>& rows, bool colours) {
  Table table({{"batch"},
               {"method", Align::left},
               {"steps"},
               {"accuracy %"},
               {"validation loss"},
               {"final loss"},
               {"sent a step"},
               {"× less"},
               {"s"}});
  const auto figure = [](const MaybeNumber& value, double factor, int digits) {
    return value ? fmt::format("{:.{}f}", factor * *value, digits) : "-";
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const CompressSweepRow& row = rows[i];
    if (i > 0 && rows[i - 1].run.batch != row.run.batch) table.add_gap();
    const bool lost = !row.run.final_loss || !std::isfinite(*row.run.final_loss);
    table.add_row(
        {{fmt::format("{}", row.run.batch)},
         {row.method},
         {fmt::format("{}", row.run.steps)},
         {figure(row.run.accuracy, 100, 2)},
         {figure(row.run.validation_loss, 1, 4)},
         {lost ? "not finite" : figure(row.run.final_loss, 1, 4), lost ? Style::red : Style::plain},
         {row.wire_bytes_a_step ? format_bytes(static_cast<std::uint64_t>(*row.wire_bytes_a_step)) : "-"},
         {figure(row.times_less(rows), 1, 2)},
         {fmt::format("{:.1f}", row.run.train_s)}});
  }
  return table.render(colours);
}

nlohmann::ordered_json to_json(const CompressSweepRow& row) {
  nlohmann::ordered_json json = {{"method", row.method}};
  json.update(to_json(row.run));
  json["wire_bytes_a_step"] = json_of(row.wire_bytes_a_step);
  json["wire_bytes"] = json_of(row.wire_bytes());
  return json;
}

}  // namespace lockstep
