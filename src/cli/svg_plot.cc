#include "cli/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::cli {

std::string escape_markup(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

namespace {

constexpr double kWidth = 900, kHeight = 460;
constexpr double kLeft = 70, kRight = 630, kTop = 56, kBottom = 396;  // of the drawing area

// Distinguishable for colour-blind readers, of middling lightness; the marker repeats the distinction.
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#b8860b", "#56b4e9", "#7a5fc7", "#8c564b"};

// A logarithmic scale from values to pixels.
class Scale {
 public:
  Scale(double low, double high, double from, double to)
      : low_(std::log10(low)),
        span_(std::max(1e-9, std::log10(high) - std::log10(low))),
        from_(from),
        to_(to) {}
  double operator()(double value) const { return std::lerp(from_, to_, (std::log10(value) - low_) / span_); }

 private:
  double low_, span_, from_, to_;
};

struct Range {
  double low = 0, high = 0;
};

Range range_of(const Plot& plot, bool of_x) {
  Range range;
  for (const auto& series : plot.series)
    for (const auto& [x, y] : series.points) {
      const double value = of_x ? x : y;
      if (!(value > 0) || !std::isfinite(value))
        throw UsageError("plot: a logarithmic axis takes values above 0");
      range.low = range.low == 0 ? value : std::min(range.low, value);
      range.high = std::max(range.high, value);
    }
  if (range.low == 0) throw UsageError("plot: there is nothing to draw");
  return range;
}

std::string tick_text(double value) {
  return value >= 1 ? fmt::format("{:.0f}", value) : fmt::format("{:g}", value);
}

std::string marker(std::size_t index, double x, double y, const char* colour) {
  if (index % 3 == 1)
    return fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="7" height="7" fill="{}"/>)", x - 3.5, y - 3.5,
                       colour);
  if (index % 3 == 2)
    return fmt::format(R"(<path d="M{:.1f} {:.1f}l4.5 8h-9z" fill="{}"/>)", x, y - 5, colour);
  return fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="{}"/>)", x, y, colour);
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}"{}>{}</text>)", x, y, anchor, more,
                     escape_markup(text)) +
         "\n";
}

std::string axes(const Plot& plot, const Scale& sx, const Scale& sy, Range y) {
  std::string out;
  // Lines at 1, 2 and 5 times a power of ten; when there are many, at the powers alone.
  const double decades = std::log10(y.high / y.low);
  const int first = static_cast<int>(std::floor(std::log10(y.low)));
  for (int e = first; e <= first + static_cast<int>(decades) + 2; ++e) {
    for (const int digit : {1, 2, 5}) {
      const double value = digit * std::pow(10.0, e);
      if (value < y.low * 0.999 || value > y.high * 1.001 || (decades > 2.5 && digit != 1)) continue;
      out += fmt::format(R"(<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>)", kLeft,
                         kRight, sy(value), sy(value)) +
             "\n";
      out += text_at(kLeft - 8, sy(value) + 4, "end", tick_text(value));
    }
  }
  double last = -1e9;
  for (const auto& [value, label] : plot.x_ticks) {
    const double x = sx(value);
    out += fmt::format(R"(<line class="axis" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>)", x,
                       kBottom, kBottom + 5) +
           "\n";
    if (x - last < 48) continue;  // labels must not touch
    out += text_at(x, kBottom + 20, "middle", label);
    last = x;
  }
  out += fmt::format(R"(<path class="axis" d="M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}"/>)", kLeft, kTop, kBottom,
                     kRight) +
         "\n";
  out += text_at((kLeft + kRight) / 2, kBottom + 44, "middle", plot.x_title);
  out += text_at(kLeft, kTop - 10, "middle", plot.y_title);
  return out;
}

}  // namespace

std::string render_svg(const Plot& plot) {
  Range x = range_of(plot, true), y = range_of(plot, false);
  if (x.low == x.high) x = {x.low / 2, x.high * 2};
  y = {y.low / 1.4, y.high * 1.4};
  const Scale sx(x.low, x.high, kLeft + 16, kRight - 16), sy(y.low, y.high, kBottom, kTop);

  std::string out = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}" role="img" aria-label="{2}">
<style>text{{font:13px system-ui,"DejaVu Sans",sans-serif;fill:#7a7a7a}}.title{{font-size:15px;font-weight:600}}.grid{{stroke:#808080;stroke-opacity:.25}}.axis{{stroke:#808080;fill:none}}</style>
)",
      kWidth, kHeight, escape_markup(plot.title));
  out += text_at(kLeft - 40, 24, "start", plot.title, R"( class="title")");
  out += axes(plot, sx, sy, y);

  std::size_t index = 0;
  double legend_y = kTop + 8;
  for (const auto& series : plot.series) {
    if (series.points.empty()) continue;
    const char* colour = series.reference ? "#808080" : kColours[index % kColours.size()];
    // The second round of colours is told from the first by short dashes.
    const char* dash = series.reference           ? R"( stroke-dasharray="6 5")"
                       : index >= kColours.size() ? R"( stroke-dasharray="2 3")"
                                                  : "";
    std::string points;
    for (const auto& [px, py] : series.points)
      points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", sx(px), sy(py));
    const double from = kRight + 16;
    out += fmt::format(R"(<polyline points="{0}" fill="none" stroke="{1}" stroke-width="2"{2}/>
<line x1="{3:.1f}" x2="{4:.1f}" y1="{5:.1f}" y2="{5:.1f}" stroke="{1}" stroke-width="2"{2}/>
)",
                       points, colour, dash, from, from + 24, legend_y);
    if (!series.reference) {
      for (const auto& [px, py] : series.points) out += marker(index, sx(px), sy(py), colour) + "\n";
      out += marker(index, from + 12, legend_y, colour) + "\n";
      ++index;
    }
    out += text_at(from + 32, legend_y + 4, "start", series.name);
    legend_y += 21;
  }
  return out + "</svg>\n";
}

}  // namespace lockstep::cli
