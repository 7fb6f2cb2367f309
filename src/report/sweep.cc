#include "report/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "report/chart.h"
#include "report/table.h"

namespace lockstep {

SweepRow median_row(std::vector<SweepRow> runs) {
  std::ranges::sort(runs, {}, &SweepRow::samples_per_s);
  return runs[(runs.size() - 1) / 2];
}

std::string sweep_csv(const std::string& option, const std::vector<SweepRow>& rows) {
  std::string text =
      option + ",samples_per_s,step_ms_p50,comm_fraction,overlap_fraction,final_loss,params_sha256\n";
  for (const SweepRow& r : rows)
    text += fmt::format("{},{:.3f},{:.4f},{:.6f},{:.6f},{},{}\n", r.value, r.samples_per_s, r.step_ms,
                        r.comm_fraction, r.overlap_fraction, r.final_loss, r.params_sha256);
  return text;
}

std::string sweep_plot(const std::string& option, const std::vector<SweepRow>& rows) {
  Chart throughput{
      .title = "Throughput against " + option, .x_title = option, .y_title = "samples/s", .from_zero = true};
  Chart share{
      .title = "Communication against " + option, .x_title = option, .y_title = "%", .from_zero = true};
  throughput.series = {{"samples/s", {}}};
  share.series = {{"share of the work", {}}, {"hidden under compute", {}}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    throughput.x_ticks.emplace_back(i, rows[i].value);
    throughput.series[0].points.emplace_back(i, rows[i].samples_per_s);
    share.series[0].points.emplace_back(i, 100 * rows[i].comm_fraction);
    share.series[1].points.emplace_back(i, 100 * rows[i].overlap_fraction);
  }
  share.x_ticks = throughput.x_ticks;
  Chart loss{.title = "Final loss against " + option, .x_title = option, .y_title = "loss"};
  loss.x_ticks = throughput.x_ticks;
  loss.series = {{"loss", {}}};
  for (std::size_t i = 0; i < rows.size(); ++i) loss.series[0].points.emplace_back(i, rows[i].final_loss);
  return stacked_charts({render_chart(throughput), render_chart(share), render_chart(loss)});
}

std::string sweep_table(const std::string& option, const std::vector<SweepRow>& rows, bool colours) {
  Table table({{option}, {"samples/s"}, {"step ms"}, {"comm %"}, {"hidden %"}, {"final loss"}});
  double best = 0, least = INFINITY;
  for (const SweepRow& r : rows) {
    best = std::max(best, r.samples_per_s);
    if (std::isfinite(r.final_loss)) least = std::min(least, r.final_loss);
  }
  for (const SweepRow& r : rows)
    table.add_row({{r.value},
                   {format_number(r.samples_per_s), r.samples_per_s == best ? Style::bold : Style::plain},
                   {format_number(r.step_ms)},
                   {fmt::format("{:.1f}", 100 * r.comm_fraction)},
                   {fmt::format("{:.1f}", 100 * r.overlap_fraction)},
                   {std::isfinite(r.final_loss) ? fmt::format("{:.4f}", r.final_loss) : "not finite",
                    r.final_loss == least ? Style::bold : Style::plain}});
  return table.render(colours);
}

nlohmann::ordered_json sweep_json(const std::string& option, const SweepRow& r) {
  return {{"option", option},
          {"value", r.value},
          {"samples_per_s", r.samples_per_s},
          {"step_ms_p50", r.step_ms},
          {"comm_fraction", r.comm_fraction},
          {"overlap_fraction", r.overlap_fraction},
          {"final_loss", r.final_loss},
          {"params_sha256", r.params_sha256}};
}

}  // namespace lockstep
