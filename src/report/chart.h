// Charts as SVG: for the run's page, for sweeps and for benchmarks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // in ascending x; a point that is not finite is left out
  bool reference = false;                         // dashed and grey: a bound, not a measurement
};

// A bound of the values: a dashed line over the whole width.
struct ChartLevel {
  std::string name;
  double y = 0;
};

enum class ChartKind : std::uint8_t {
  lines,
  stacked,  // areas on top of each other; the series share their x
};

enum class ChartScale : std::uint8_t { linear, logarithmic };  // of both axes

enum class ChartLegend : std::uint8_t {
  above,   // where there is anything to tell apart; for a few series
  beside,  // on a larger chart, one line a series, which also have markers of their own
};

struct Chart {
  std::string title;
  std::string x_title;
  std::string y_title;
  ChartKind kind = ChartKind::lines;
  ChartScale scale = ChartScale::linear;
  ChartLegend legend = ChartLegend::above;
  bool from_zero = false;  // the y axis begins at 0
  bool cut_peaks = false;  // the y axis ends where a few single points would make the rest flat
  std::vector<std::pair<double, std::string>> x_ticks = {};  // labels at these values; empty: round numbers
  std::optional<ChartLevel> level = {};
  std::vector<ChartSeries> series = {};
};

// One <svg> element, a document by itself too. Without any point it says so. Throws UsageError when a
// logarithmic chart has none, or one that has no logarithm.
std::string render_chart(const Chart& chart);

// Charts with their legend above, as render_chart made them, one below the other in one document.
std::string stacked_charts(const std::vector<std::string>& charts);

}  // namespace lockstep
