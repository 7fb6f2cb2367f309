#include "report/page.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "lockstep/report/csv.h"
#include "report/chart.h"
#include "report/page_parts.h"
#include "report/svg.h"
#include "report/table.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json read_object(const fs::path& file) {
  Json json = try_json_file<Json>(file);
  return json.is_object() ? json : Json::object();
}

CsvTable read_table(const fs::path& file) { return fs::exists(file) ? read_csv(file) : CsvTable(); }

using Points = std::vector<std::pair<double, double>>;

Points points_of(const CsvTable& table, const char* x, const char* y, double factor = 1) {
  const std::vector<double> xs = table.numbers(x), ys = table.numbers(y);
  Points points;
  for (std::size_t i = 0; i < std::min(xs.size(), ys.size()); ++i) points.emplace_back(xs[i], ys[i] * factor);
  return points;
}

// What was found at which step. A folder of an earlier version has it by epochs alone.
Points evaluations(const CsvTable& epochs, const CsvTable& every, const char* what, double factor = 1) {
  std::map<double, double> found;
  for (const CsvTable* table : {&epochs, &every})
    for (const auto& [step, value] : points_of(*table, "step", what, factor))
      if (std::isfinite(value)) found[step] = value;
  return {found.begin(), found.end()};
}

// The ratio of two sums over the steps around each, so that the line can be read.
Points ratio(const std::vector<double>& step, const std::vector<double>& above,
             const std::vector<double>& below) {
  Points points;
  const std::size_t count = std::min({step.size(), above.size(), below.size()});
  const std::size_t width = std::max<std::size_t>(1, count / 100);
  for (std::size_t i = 0; i + width <= count; i += width) {
    double n = 0, t = 0;
    for (std::size_t k = i; k < i + width; ++k) {
      n += above[k];
      t += below[k];
    }
    if (t > 0) points.emplace_back(step[i + width / 2], n / t);
  }
  return points;
}

Points throughput(const CsvTable& steps) {
  Points points = ratio(steps.numbers("step"), steps.numbers("samples"), steps.numbers("step_ms"));
  for (auto& p : points) p.second *= 1000;  // a second
  return points;
}

Points comm_share(const CsvTable& steps) {
  const std::vector<double> compute = steps.numbers("compute_ms");
  std::vector<double> comm = steps.numbers("comm_ms"), work;
  for (std::size_t i = 0; i < std::min(comm.size(), compute.size()); ++i) {
    work.push_back(compute[i] + comm[i]);
    comm[i] *= 100;  // %
  }
  return ratio(steps.numbers("step"), comm, work);
}

std::string figure(const std::string& name, const std::string& value) {
  return fmt::format("<div><b>{}</b><span>{}</span></div>\n", svg::escape(value), svg::escape(name));
}

std::string percent(const Json& value) {
  return value.is_number() ? fmt::format("{:.1f} %", 100 * value.get<double>()) : "–";
}

std::string figures(const Json& s) {
  if (s.empty()) return "<p>The run has not ended yet.</p>\n";
  const auto number = [&](const char* key) { return s.value(key, Json()); };
  std::string out = "<div class=\"figures\">\n";
  if (number("accuracy").is_number()) out += figure("accuracy", percent(number("accuracy")));
  if (number("validation_loss").is_number())
    out += figure("validation loss", fmt::format("{:.4f}", number("validation_loss").get<double>()));
  if (number("final_loss").is_number())
    out += figure("final loss", fmt::format("{:.4f}", number("final_loss").get<double>()));
  if (number("loss_floor").is_number())
    out +=
        figure("its floor, by the text's entropy", fmt::format("{:.4f}", number("loss_floor").get<double>()));
  out += figure("samples/s", format_number(s.value("samples_per_s", NAN)));
  out += figure("step, median", fmt::format("{} ms", format_number(s.value("step_ms_p50", NAN))));
  out += figure("step, p95", fmt::format("{} ms", format_number(s.value("step_ms_p95", NAN))));
  out += figure("communication", percent(number("comm_fraction")));
  out += figure("of it hidden under compute", percent(number("overlap_fraction")));
  if (number("loss_scale").is_number()) {
    out += figure("steps skipped, overflowed", number("steps_skipped").dump());
    out += figure("loss scale", format_number(number("loss_scale").get<double>()));
  }
  return out + "</div>\n";
}

std::string charts(const fs::path& folder, const std::vector<TimelineRow>& timeline,
                   std::optional<double> loss_floor) {
  const CsvTable steps = read_table(folder / "steps.csv"), epochs = read_table(folder / "epochs.csv"),
                 every = read_table(folder / "evaluations.csv");
  std::vector<ChartSeries> losses = {{"training", points_of(steps, "step", "loss")}};
  if (Points points = evaluations(epochs, every, "validation_loss"); !points.empty())
    losses.push_back({"validation", std::move(points)});
  std::string out = "<div class=\"charts\">\n";
  const auto add = [&](const std::string& svg) { out += "<div>" + svg + "</div>\n"; };
  add(render_chart({.title = "Loss",
                    .x_title = "step",
                    .y_title = "loss",
                    .level = loss_floor ? std::optional(ChartLevel{"floor: the text's entropy", *loss_floor})
                                        : std::nullopt,
                    .series = std::move(losses)}));
  if (Points points = evaluations(epochs, every, "accuracy", 100); !points.empty() || every.rows.empty())
    add(render_chart({.title = "Accuracy on the test split",
                      .x_title = "step",
                      .y_title = "%",
                      .series = {{"accuracy", std::move(points)}}}));
  for (std::size_t c = 4; c < every.columns.size(); ++c)  // metrics of the program's own
    add(render_chart({.title = every.columns[c],
                      .x_title = "step",
                      .y_title = every.columns[c],
                      .series = {{every.columns[c], points_of(every, "step", every.columns[c].c_str())}}}));
  add(render_chart({.title = "Throughput",
                    .x_title = "step",
                    .y_title = "samples/s",
                    .from_zero = true,
                    .series = {{"samples/s", throughput(steps)}}}));
  add(render_chart({.title = "Communication share",
                    .x_title = "step",
                    .y_title = "% of compute and communication",
                    .from_zero = true,
                    .series = {{"share", comm_share(steps)}}}));
  add(render_chart({.title = "Where a step's time goes",
                    .x_title = "step",
                    .y_title = "ms",
                    .kind = ChartKind::stacked,
                    .cut_peaks = true,
                    .series = {{"compute", points_of(steps, "step", "compute_ms")},
                               {"waiting for buckets", points_of(steps, "step", "exposed_comm_ms")},
                               {"waiting for data", points_of(steps, "step", "data_wait_ms")}}}));
  if (const CsvTable noise = read_table(folder / "noise.csv"); !noise.rows.empty())
    add(render_chart({.title = "Gradient noise scale: the batch at which more examples stop paying",
                      .x_title = "step",
                      .y_title = "examples",
                      .from_zero = true,
                      .cut_peaks = true,
                      .series = {{"noise scale", points_of(noise, "step", "noise_scale")},
                                 {"at least, 95 %", points_of(noise, "step", "low"), true},
                                 {"at most, 95 %", points_of(noise, "step", "high"), true}}}));
  add(render_timeline("One step on rank 0: buckets leave while backward runs", timeline));
  return out + "</div>\n";
}

std::string options_of(const Json& config) {
  std::string out = "<details open><summary>Options</summary><div class=\"options\">\n";
  for (const auto& [key, value] : config.items()) {
    const std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
    if (shown.empty()) continue;
    out += fmt::format("<div><i>{}</i> {}</div>\n", svg::escape(key), svg::escape(shown));
  }
  return out + "</div></details>\n";
}

}  // namespace

std::string render_page(const fs::path& folder, const std::vector<TimelineRow>& timeline,
                        std::optional<double> loss_floor) {
  const Json config = read_object(folder / "config.json");
  const Json summary = read_object(folder / "summary.json");
  const std::string title = fmt::format("{} on {}", config.value("model", "?"), config.value("data", "?"));
  std::string out = page_head(title) + fmt::format("<h1>{}</h1>\n", svg::escape(title));
  const auto count = [&](const char* key, const char* what) {
    const Json value = config.value(key, Json());
    return counted(value.is_number_integer() ? value.get<std::int64_t>() : 0, what);
  };
  out += fmt::format("<p>{}, {} × {}, {} from seed {}</p>\n", count("workers", "worker"),
                     count("lanes", "lane"), count("lane_batch", "sample"),
                     svg::escape(config.value("optimizer", "?")), config.value("seed", Json(0)).dump());
  out += figures(summary);
  out += charts(folder, timeline, loss_floor);
  out += page_table(read_table(folder / "latency.csv"), "Latency of every bucket's exchange");
  out += options_of(config);
  out +=
      "<p>The numbers are in steps.csv, epochs.csv, evaluations.csv, buckets.csv, latency.csv and "
      "summary.json; trace.json "
      "opens in "
      "ui.perfetto.dev.</p>\n";
  return out + "</body></html>\n";
}

}  // namespace lockstep
