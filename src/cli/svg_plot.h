// A small line chart with two logarithmic axes, as SVG. It has no background, and its colours are
// readable on light and dark ones.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep::cli {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // both above 0
  bool reference = false;                         // dashed and grey: a bound, not a measurement
};

struct Plot {
  std::string title;
  std::string x_title;
  std::string y_title;
  // Labels under the x axis, at these values.
  std::vector<std::pair<double, std::string>> x_ticks;
  std::vector<Series> series;
};

// Text as it stands in SVG and HTML.
std::string escape_markup(const std::string& text);

// One SVG document. Throws UsageError when there is no point to draw.
std::string render_svg(const Plot& plot);

}  // namespace lockstep::cli
