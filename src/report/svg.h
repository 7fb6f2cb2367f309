// What every drawing is made of. No background, and colours that are readable on light and dark ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::svg {

// Text as it stands in SVG and HTML.
std::string escape(const std::string& text);

// The beginning of one <svg> element, a document by itself too, with its title. `font_px`: of plain text.
struct Canvas {
  double width = 0, height = 0;
  int font_px = 12;
  std::string attributes = {};  // more of the element: `width="900" height="460" `
};
std::string open(const std::string& title, const Canvas& canvas, double title_x, double title_y);
std::string text(double x, double y, const char* anchor, const std::string& words, const char* more = "");
std::string line(const char* kind, double x1, double x2, double y1, double y2, const char* more = "");

// Distinguishable for colour-blind readers, of middling lightness; they begin anew after kColours.
inline constexpr std::size_t kColours = 8;
const char* colour(std::size_t index);

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return !std::isfinite(low); }
  // Never of no length.
  Range widened() const {
    return high > low
               ? *this
               : Range{low - std::max(0.5, std::abs(low) / 10), high + std::max(0.5, std::abs(high) / 10)};
  }
};

// 1, 2 or 5 times a power of ten, so that a span has at most so many of them; and a value at such a distance
// from the next one, with as many digits as it takes.
double tick_step(double span, int most);
// The multiples of `step` in a range; few where the step is lost in the rounding of the range's values.
std::vector<double> ticks(const Range& range, double step);
std::string tick_text(double value, double step);

}  // namespace lockstep::svg
