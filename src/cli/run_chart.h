// Charts with linear axes as SVG, for the run's page and for sweeps. They have no background, and their
// colours are readable on light and dark ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::cli {

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // in ascending x; a point that is not finite is left out
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

struct Chart {
  std::string title;
  std::string x_title;
  std::string y_title;
  ChartKind kind = ChartKind::lines;
  bool from_zero = false;  // the y axis begins at 0
  bool cut_peaks = false;  // the y axis ends where a few single points would make the rest flat
  std::vector<std::string> x_labels = {};  // when given, x counts these from 0
  std::optional<ChartLevel> level = {};
  std::vector<ChartSeries> series = {};
};

// One <svg> element, a document by itself too. Without any point it says so.
std::string render_chart(const Chart& chart);

// What happened when: one row a track.
struct TimelineSpan {
  double begin_ms = 0, end_ms = 0;
  std::string label;
  int colour = 0;
};
struct TimelineRow {
  std::string name;
  std::vector<TimelineSpan> spans;
};
std::string render_timeline(const std::string& title, const std::vector<TimelineRow>& rows);

}  // namespace lockstep::cli
