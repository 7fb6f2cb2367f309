#include "report/batch_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/json_text.h"
#include "lockstep/base/error.h"
#include "lockstep/report/csv.h"
#include "report/chart.h"
#include "report/noise_json.h"
#include "report/page_parts.h"
#include "report/svg.h"
#include "report/table.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Smaller differences of accuracy are those of two seeds.
constexpr double kHoldPoints = 0.5;

std::string optional_cell(const std::optional<double>& value) {
  return value ? fmt::format("{}", *value) : "";
}
Json optional_json(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

// Recipes, or recipes with their precisions where there are several, in the order of the rows.
struct SweepLine {
  std::string recipe, precision, name;
};
std::vector<SweepLine> lines_of(const std::vector<BatchSweepRow>& rows) {
  std::vector<SweepLine> lines;
  const bool several =
      std::ranges::any_of(rows, [&](const BatchSweepRow& r) { return r.precision != rows[0].precision; });
  for (const BatchSweepRow& r : rows)
    if (std::ranges::none_of(
            lines, [&](const SweepLine& l) { return l.recipe == r.recipe && l.precision == r.precision; }))
      lines.push_back({r.recipe, r.precision, several ? r.recipe + ", " + r.precision : r.recipe});
  return lines;
}

using Figure = std::optional<double> (*)(const BatchSweepRow&);

Chart chart_of(const std::vector<BatchSweepRow>& rows, const std::string& title, const std::string& unit,
               Figure figure) {
  Chart chart{.title = title, .x_title = "batch", .y_title = unit};
  for (const BatchSweepRow& r : rows) {
    const double x = std::log2(static_cast<double>(r.factor));
    if (chart.x_ticks.empty() || chart.x_ticks.back().first < x)
      chart.x_ticks.emplace_back(x, fmt::format("{}", r.batch));
  }
  for (const SweepLine& line : lines_of(rows)) {
    ChartSeries series{.name = line.name, .points = {}};
    for (const BatchSweepRow& r : rows)
      if (r.recipe == line.recipe && r.precision == line.precision)
        series.points.emplace_back(std::log2(static_cast<double>(r.factor)), figure(r).value_or(NAN));
    chart.series.push_back(std::move(series));
  }
  return chart;
}

std::vector<std::string> charts_of(const std::vector<BatchSweepRow>& rows) {
  return {render_chart(chart_of(rows, "Accuracy after as many examples", "%",
                                [](const BatchSweepRow& r) -> std::optional<double> {
                                  return r.accuracy ? std::optional(100 * *r.accuracy) : std::nullopt;
                                })),
          render_chart(chart_of(rows, "Validation loss after as many examples", "loss",
                                [](const BatchSweepRow& r) { return r.validation_loss; })),
          render_chart(chart_of(rows, "Time of all steps", "s",
                                [](const BatchSweepRow& r) -> std::optional<double> { return r.train_s; }))};
}

CsvTable csv_table(const std::vector<BatchSweepRow>& rows) {
  CsvTable table{.columns = {"factor", "batch", "recipe", "precision", "steps", "warmup_steps", "lr",
                             "accuracy", "validation_loss", "final_loss", "train_s", "noise_scale",
                             "noise_low", "noise_high", "params_sha256"},
                 .rows = {}};
  for (const BatchSweepRow& r : rows) {
    const auto noise = [&](double NoiseFigures::*field) {
      return r.noise ? fmt::format("{}", (*r.noise).*field) : std::string();
    };
    table.rows.push_back({fmt::format("{}", r.factor), fmt::format("{}", r.batch), r.recipe, r.precision,
                          fmt::format("{}", r.steps), fmt::format("{}", r.warmup_steps),
                          fmt::format("{}", r.lr), optional_cell(r.accuracy),
                          optional_cell(r.validation_loss), optional_cell(r.final_loss),
                          fmt::format("{:.3f}", r.train_s), noise(&NoiseFigures::scale),
                          noise(&NoiseFigures::low), noise(&NoiseFigures::high), r.params_sha256});
  }
  return table;
}

// The accuracy that recipes are held against.
std::optional<double> base_accuracy(const std::vector<BatchSweepRow>& rows, const std::string& precision) {
  for (const BatchSweepRow& r : rows)  // ascending in the factor
    if (r.recipe == "fixed" && r.precision == precision && r.accuracy) return r.accuracy;
  return {};
}

// "warmup holds to 16 × (0.5 points)", one line a recipe.
std::vector<std::string> verdicts(const std::vector<BatchSweepRow>& rows) {
  std::vector<std::string> found;
  for (const SweepLine& line : lines_of(rows))
    if (!base_accuracy(rows, line.precision))
      found.push_back(
          fmt::format("{} has no base accuracy beside it, which is that of a run of fixed", line.name));
    else if (const std::int64_t factor = held_to(rows, line.recipe, line.precision, kHoldPoints); factor > 0)
      found.push_back(fmt::format("{} is within {} points of the base accuracy up to {} × the base batch",
                                  line.name, kHoldPoints, factor));
    else
      found.push_back(
          fmt::format("{} is nowhere within {} points of the base accuracy", line.name, kHoldPoints));
  return found;
}

}  // namespace

BatchSweepRow read_batch_run(const fs::path& folder, bool finished) {
  BatchSweepRow row;
  const CsvTable steps = read_csv(folder / "steps.csv");
  row.steps = static_cast<std::int64_t>(steps.rows.size());
  const std::vector<double> ms = steps.numbers("step_ms");
  row.train_s = std::accumulate(ms.begin(), ms.end(), 0.0) / 1000;
  if (!finished) return row;
  const Json summary = try_json_file<Json>(folder / "summary.json");
  if (!summary.is_object()) throw UsageError((folder / "summary.json").string() + " is no summary of a run");
  const auto number = [&](const char* key) {
    const Json value = summary.value(key, Json());
    return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
  };
  row.accuracy = number("accuracy");
  row.validation_loss = number("validation_loss");
  row.final_loss = number("final_loss");
  row.noise = noise_from_json(summary.value("noise", Json()));
  row.params_sha256 = summary.value("params_sha256", "");
  return row;
}

bool stopped_not_finite(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / "steps.csv", ignored)) return false;
  const std::vector<double> losses = read_csv(folder / "steps.csv").numbers("loss");
  return !losses.empty() && !std::isfinite(losses.back());
}

std::int64_t held_to(const std::vector<BatchSweepRow>& rows, const std::string& recipe,
                     const std::string& precision, double points) {
  const std::optional<double> base = base_accuracy(rows, precision);
  std::int64_t held = 0;
  for (const BatchSweepRow& r : rows) {
    if (r.recipe != recipe || r.precision != precision) continue;
    if (!base || !r.accuracy || *r.accuracy < *base - points / 100) break;
    held = r.factor;
  }
  return held;
}

std::string batch_sweep_csv(const std::vector<BatchSweepRow>& rows) {
  const CsvTable table = csv_table(rows);
  std::string text = fmt::format("{}\n", fmt::join(table.columns, ","));
  for (const auto& row : table.rows) text += fmt::format("{}\n", fmt::join(row, ","));
  return text;
}

std::string batch_sweep_plot(const std::vector<BatchSweepRow>& rows) {
  return stacked_charts(charts_of(rows));
}

std::string batch_sweep_page(const std::vector<BatchSweepRow>& rows, const std::string& title,
                             const std::string& command) {
  std::string out = page_head(title) + fmt::format("<h1>{}</h1>\n<p><code>{}</code></p>\n",
                                                   svg::escape(title), svg::escape(command));
  for (const std::string& verdict : verdicts(rows)) out += fmt::format("<p>{}</p>\n", svg::escape(verdict));
  out += "<div class=\"charts\">\n";
  for (const std::string& chart : charts_of(rows)) out += "<div>" + chart + "</div>\n";
  return out + "</div>\n" + page_table(csv_table(rows), "Every run") +
         "<p>The numbers are in sweep.csv; every run has a folder and a page of its "
         "own.</p>\n</body></html>\n";
}

std::string batch_sweep_table(const std::vector<BatchSweepRow>& rows, bool colours) {
  Table table({{"batch"},
               {"recipe", Align::left},
               {"precision", Align::left},
               {"steps"},
               {"lr"},
               {"accuracy %"},
               {"validation loss"},
               {"final loss"},
               {"s"},
               {"noise scale", Align::left}});
  const auto figure = [](const std::optional<double>& value, double factor, int digits) {
    return value && std::isfinite(*value) ? fmt::format("{:.{}f}", factor * *value, digits) : "not finite";
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const BatchSweepRow& r = rows[i];
    if (i > 0 && rows[i - 1].batch != r.batch) table.add_gap();
    const bool lost = !r.final_loss || !std::isfinite(*r.final_loss);
    table.add_row({{fmt::format("{}", r.batch)},
                   {r.recipe},
                   {r.precision},
                   {fmt::format("{}", r.steps)},
                   {fmt::format("{:.4g}", r.lr)},
                   {r.accuracy || lost ? figure(r.accuracy, 100, 2) : "-", lost ? Style::red : Style::plain},
                   {r.validation_loss || lost ? figure(r.validation_loss, 1, 4) : "-"},
                   {figure(r.final_loss, 1, 4)},
                   {fmt::format("{:.1f}", r.train_s)},
                   {r.noise ? to_string(*r.noise) : "-"}});
  }
  std::string out = table.render(colours) + "\n";
  for (const std::string& verdict : verdicts(rows)) out += verdict + "\n";
  return out;
}

Json to_json(const BatchSweepRow& r) {
  return {{"factor", r.factor},
          {"batch", r.batch},
          {"recipe", r.recipe},
          {"precision", r.precision},
          {"steps", r.steps},
          {"warmup_steps", r.warmup_steps},
          {"lr", r.lr},
          {"accuracy", optional_json(r.accuracy)},
          {"validation_loss", optional_json(r.validation_loss)},
          {"final_loss", optional_json(r.final_loss)},
          {"train_s", r.train_s},
          {"noise", r.noise ? to_json(*r.noise) : Json()},
          {"params_sha256", r.params_sha256}};
}

}  // namespace lockstep
