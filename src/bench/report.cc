#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lockstep/base/bytes.h"
#include "report/chart.h"
#include "report/table.h"

namespace lockstep {
namespace {

std::string format_optional(const std::optional<double>& value) {
  return value ? format_number(*value) : "-";
}

// The fastest right row of each size, in order of size.
std::map<std::uint64_t, const BenchRow*> winners(const std::vector<BenchRow>& rows) {
  std::map<std::uint64_t, const BenchRow*> best;
  for (const auto& row : rows) {
    if (!row.checked) continue;
    const BenchRow*& here = best[row.bytes];
    if (here == nullptr || row.us < here->us) here = &row;
  }
  return best;
}

std::string variant_in_words(const BenchRow& row) {
  return fmt::format("{} {} ({} memory)", row.engine, row.algorithm, row.memory);
}

}  // namespace

std::string bench_table(const std::vector<BenchRow>& rows, bool colours) {
  Table table({{"size"},
               {"engine", Align::left},
               {"algorithm", Align::left},
               {"memory", Align::left},
               {"time µs"},
               {"p25 – p75"},
               {"algbw GB/s"},
               {"busbw GB/s"},
               {"× floor"},
               {"× peer"},
               {"", Align::left}});
  const auto best = winners(rows);
  std::optional<std::uint64_t> size;
  for (const auto& row : rows) {
    if (size && *size != row.bytes) table.add_gap();
    const auto won = best.find(row.bytes);
    const Style style = !row.checked                               ? Style::red
                        : won != best.end() && won->second == &row ? Style::bold
                                                                   : Style::plain;
    const std::string shown = size == row.bytes ? "" : format_bytes(row.bytes);
    size = row.bytes;
    table.add_row({{shown, Style::plain},
                   {row.engine, style},
                   {row.algorithm, style},
                   {row.memory, style},
                   {format_number(row.us), style},
                   {fmt::format("{} – {}", format_number(row.us_p25), format_number(row.us_p75)), Style::dim},
                   {format_number(row.algbw_gbs), style},
                   {format_number(row.busbw_gbs), style},
                   {format_optional(row.floor_ratio), style},
                   {format_optional(row.peer_ratio), style},
                   {row.checked ? "" : "WRONG RESULT", style}});
  }
  return table.render(colours);
}

std::string bench_conclusion(const std::vector<BenchRow>& rows) {
  const auto best = winners(rows);
  if (best.empty()) return "";
  std::string text;
  // Sizes that follow each other with the same winner are told together.
  for (auto it = best.begin(); it != best.end();) {
    const BenchRow& first = *it->second;
    auto last = it;
    double low = 1e300, high = 0;
    auto end = it;
    for (; end != best.end() && end->second->variant() == first.variant(); ++end) {
      last = end;
      low = std::min(low, end->second->peer_ratio.value_or(1));
      high = std::max(high, end->second->peer_ratio.value_or(1));
    }
    text += text.empty() ? "Fastest: " : "; ";
    if (it == best.begin() && end == best.end() && best.size() > 1)
      text += "at every size ";
    else if (first.bytes != 0)
      text += it == last
                  ? fmt::format("at {} ", format_bytes(first.bytes))
                  : fmt::format("from {} to {} ", format_bytes(first.bytes), format_bytes(last->first));
    text += variant_in_words(first);
    if (first.peer_ratio && !first.is_peer()) {
      const std::string ratio = format_number(low) == format_number(high)
                                    ? format_number(low)
                                    : fmt::format("{} to {}", format_number(low), format_number(high));
      text += fmt::format(", {} of the time of the fastest peer", ratio);
    }
    it = end;
  }
  return text + ".";
}

std::string bench_plot(const std::vector<BenchRow>& rows) {
  Chart plot{.title = "",
             .x_title = "bytes",
             .y_title = "µs",
             .scale = ChartScale::logarithmic,
             .legend = ChartLegend::beside};
  if (!rows.empty())
    plot.title = fmt::format("{}{}, {}, {}", rows[0].op,
                             rows[0].reduction.empty() ? "" : " (" + rows[0].reduction + ")", rows[0].dtype,
                             counted(rows[0].workers, "worker"));
  ChartSeries floor{.name = "floor: memory bandwidth", .points = {}, .reference = true};
  for (const auto& row : rows) {
    if (!row.checked || row.bytes == 0) continue;
    const auto bytes = static_cast<double>(row.bytes);
    auto at = std::ranges::find(plot.series, row.variant(), &ChartSeries::name);
    if (at == plot.series.end()) at = plot.series.insert(at, {.name = row.variant(), .points = {}});
    at->points.emplace_back(bytes, std::max(row.us, 1e-3));
    const bool seen = !plot.x_ticks.empty() && plot.x_ticks.back().first == bytes;
    if (seen) continue;
    plot.x_ticks.emplace_back(bytes, format_bytes(row.bytes));
    if (row.floor_us) floor.points.emplace_back(bytes, *row.floor_us);
  }
  plot.series.push_back(std::move(floor));
  return render_chart(plot);
}

}  // namespace lockstep
