#include "cli/run_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/svg_plot.h"

namespace lockstep::cli {
namespace {

constexpr double kWidth = 640, kHeight = 300;
constexpr double kLeft = 62, kRight = 622, kTop = 62, kBottom = 250;  // of the drawing area
constexpr std::size_t kMostPoints = 560;  // a line is drawn with; more are averaged

// Distinguishable for colour-blind readers, of middling lightness.
constexpr std::array<const char*, 6> kColours = {"#0072b2", "#d55e00", "#009e73",
                                                 "#cc79a7", "#b8860b", "#7a5fc7"};
const char* colour(std::size_t index) { return kColours[index % kColours.size()]; }

using Points = std::vector<std::pair<double, double>>;

Points thinned(const Points& points) {
  Points finite;
  for (const auto& p : points)
    if (std::isfinite(p.first) && std::isfinite(p.second)) finite.push_back(p);
  if (finite.size() <= kMostPoints) return finite;
  Points result;
  const std::size_t group = (finite.size() + kMostPoints - 1) / kMostPoints;
  for (std::size_t i = 0; i < finite.size(); i += group) {
    const std::size_t end = std::min(finite.size(), i + group);
    double x = 0, y = 0;
    for (std::size_t k = i; k < end; ++k) {
      x += finite[k].first;
      y += finite[k].second;
    }
    result.emplace_back(x / static_cast<double>(end - i), y / static_cast<double>(end - i));
  }
  return result;
}

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Never of no length.
  Range widened() const {
    return high > low
               ? *this
               : Range{low - std::max(0.5, std::abs(low) / 10), high + std::max(0.5, std::abs(high) / 10)};
  }
};

double tick_step(double span, int most) {
  const double rough = span / most, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double digit : {1.0, 2.0, 5.0})
    if (digit * power >= rough) return digit * power;
  return 10 * power;
}

std::string tick_text(double value, double step) {
  if (std::abs(value) < step / 1e6) return "0";
  const int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(step))), 0, 6);
  return fmt::format("{:.{}f}", value, decimals);
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}"{}>{}</text>)", x, y, anchor, more,
                     escape_markup(text)) +
         "\n";
}

std::string open_svg(const std::string& title, double height) {
  return fmt::format(
             R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" role="img" aria-label="{2}">
<style>text{{font:12px system-ui,"DejaVu Sans",sans-serif;fill:#7a7a7a}}.title{{font-size:14px;font-weight:600}}.grid{{stroke:#808080;stroke-opacity:.25}}.axis{{stroke:#808080;fill:none}}</style>
)",
             kWidth, height, escape_markup(title)) +
         text_at(14, 20, "start", title, R"( class="title")");
}

constexpr double kPeak = 4;  // times the median: higher values are rare

double median_of(Points points) {
  if (points.empty()) return 0;
  const auto middle = points.begin() + std::ssize(points) / 2;
  std::ranges::nth_element(points, middle, {}, &Points::value_type::second);
  return middle->second;
}

struct Frame {
  Range x, y;
  double at_x(double v) const { return std::lerp(kLeft, kRight, (v - x.low) / (x.high - x.low)); }
  double at_y(double v) const { return std::lerp(kBottom, kTop, (v - y.low) / (y.high - y.low)); }
};

std::string axes(const Chart& chart, const Frame& frame, const std::string& y_title) {
  std::string out;
  const double y_step = tick_step(frame.y.high - frame.y.low, 5);
  for (double v = std::ceil(frame.y.low / y_step) * y_step; v <= frame.y.high + y_step / 1e6; v += y_step) {
    out += fmt::format(R"(<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>)", kLeft,
                       kRight, frame.at_y(v), frame.at_y(v)) +
           "\n" + text_at(kLeft - 7, frame.at_y(v) + 4, "end", tick_text(v, y_step));
  }
  if (chart.x_labels.empty()) {
    const double x_step = std::max(1.0, tick_step(frame.x.high - frame.x.low, 8));
    for (double v = std::ceil(frame.x.low / x_step) * x_step; v <= frame.x.high + x_step / 1e6; v += x_step)
      out += text_at(frame.at_x(v), kBottom + 17, "middle", tick_text(v, x_step));
  } else {
    for (std::size_t i = 0; i < chart.x_labels.size(); ++i)
      out += text_at(frame.at_x(static_cast<double>(i)), kBottom + 17, "middle", chart.x_labels[i]);
  }
  out += fmt::format(R"(<path class="axis" d="M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}"/>)", kLeft, kTop, kBottom,
                     kRight) +
         "\n" + text_at((kLeft + kRight) / 2, kBottom + 36, "middle", chart.x_title);
  return out + text_at(14, kTop - 9, "start", y_title);
}

std::string dashed(double x1, double x2, double y) {
  return fmt::format(
             R"(<line class="axis" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}" stroke-width="1.6" stroke-dasharray="6 5"/>)",
             x1, x2, y, y) +
         "\n";
}

// From the right: the level, then the series.
std::string legend(const Chart& chart) {
  std::string out;
  double x = kRight;
  if (chart.level) {
    x -= 7.0 * static_cast<double>(chart.level->name.size());
    out += text_at(x, kTop - 9, "start", chart.level->name) + dashed(x - 28, x - 5, kTop - 13);
    x -= 40;
  }
  for (std::size_t i = chart.series.size(); i-- > 0;) {
    x -= 7.0 * static_cast<double>(chart.series[i].name.size());
    out += text_at(x, kTop - 9, "start", chart.series[i].name) +
           fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="10" height="10" rx="2" fill="{}"/>)", x - 14,
                       kTop - 18, colour(i)) +
           "\n";
    x -= 26;
  }
  return out;
}

std::string line_of(const Points& points, const Frame& frame, std::size_t index) {
  std::string text, dots;
  for (const auto& [x, y] : points) {
    text += fmt::format("{}{:.1f},{:.1f}", text.empty() ? "" : " ", frame.at_x(x), frame.at_y(y));
    if (points.size() <= 24)
      dots += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3.2" fill="{}"/>)", frame.at_x(x),
                          frame.at_y(y), colour(index));
  }
  return fmt::format(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="1.8"/>)", text,
                     colour(index)) +
         dots + "\n";
}

std::string area_of(const Points& below, const Points& above, const Frame& frame, std::size_t index) {
  std::string text;
  for (const auto& [x, y] : above) text += fmt::format("{:.1f},{:.1f} ", frame.at_x(x), frame.at_y(y));
  for (auto p = below.rbegin(); p != below.rend(); ++p)
    text += fmt::format("{:.1f},{:.1f} ", frame.at_x(p->first), frame.at_y(p->second));
  return fmt::format(R"(<polygon points="{}" fill="{}" fill-opacity=".75"/>)", text, colour(index)) + "\n";
}

}  // namespace

std::string render_chart(const Chart& chart) {
  // Lines by level: of a stacked chart each series lies on the one before.
  std::vector<Points> lines;
  for (const ChartSeries& series : chart.series) {
    Points points = thinned(series.points);
    if (chart.kind == ChartKind::stacked && !lines.empty())
      for (std::size_t i = 0; i < std::min(points.size(), lines.back().size()); ++i)
        points[i].second += lines.back()[i].second;
    lines.push_back(std::move(points));
  }
  bool cut = false;
  if (chart.cut_peaks && !lines.empty()) {
    const double most = kPeak * median_of(lines.back());
    for (Points& points : lines)
      for (auto& p : points) {
        cut = cut || p.second > most;
        p.second = std::min(p.second, most);
      }
  }
  Range x, y;
  for (const Points& points : lines)
    for (const auto& [px, py] : points) {
      x.add(px);
      y.add(py);
    }
  std::string out = open_svg(chart.title, kHeight);
  if (!std::isfinite(x.low))
    return out + text_at(kWidth / 2, kHeight / 2, "middle", "nothing yet") + "</svg>\n";
  if (chart.from_zero || chart.kind == ChartKind::stacked) y.low = 0;
  if (chart.level) y.add(chart.level->y);
  Frame frame{x.widened(), y.widened()};
  const double margin = (frame.y.high - frame.y.low) * 0.06;
  frame.y.high += margin;
  if (frame.y.low != 0) frame.y.low -= margin;
  out += axes(chart, frame, cut ? chart.y_title + " (higher ones are cut)" : chart.y_title);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (chart.kind == ChartKind::lines) {
      out += line_of(lines[i], frame, i);
      continue;
    }
    Points floor = lines[i];
    for (auto& p : floor) p.second = 0;
    out += area_of(i == 0 ? floor : lines[i - 1], lines[i], frame, i);
  }
  if (chart.level) out += dashed(kLeft, kRight, frame.at_y(chart.level->y));
  if (chart.series.size() > 1 || chart.level) out += legend(chart);
  return out + "</svg>\n";
}

std::string render_timeline(const std::string& title, const std::vector<TimelineRow>& rows) {
  const double row_height = 34, top = 40;
  const double bottom = top + row_height * static_cast<double>(rows.size());
  std::string out = open_svg(title, bottom + 44);
  Range x;
  for (const auto& row : rows)
    for (const auto& span : row.spans) {
      x.add(span.begin_ms);
      x.add(span.end_ms);
    }
  if (!std::isfinite(x.low)) return out + text_at(kWidth / 2, top + 20, "middle", "nothing yet") + "</svg>\n";
  const double left = 124;
  const Range range = x.widened();
  const auto at = [&](double ms) {
    return std::lerp(left, kRight, (ms - range.low) / (range.high - range.low));
  };
  const double step = tick_step(range.high - range.low, 8);
  for (double v = std::ceil(range.low / step) * step; v <= range.high; v += step)
    out += fmt::format(R"(<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>)", at(v),
                       top, bottom) +
           "\n" + text_at(at(v), bottom + 16, "middle", tick_text(v, step));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const double y = top + row_height * static_cast<double>(r) + 4;
    out += text_at(left - 8, y + 17, "end", rows[r].name);
    for (const TimelineSpan& span : rows[r].spans) {
      const double width = std::max(1.0, at(span.end_ms) - at(span.begin_ms));
      out +=
          fmt::format(
              R"(<g><rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2" fill="{}" fill-opacity=".8"/><title>{}: {:.2f} to {:.2f} ms</title></g>)",
              at(span.begin_ms), y, width, row_height - 8, colour(static_cast<std::size_t>(span.colour)),
              escape_markup(span.label), span.begin_ms, span.end_ms) +
          "\n";
      if (width > 7.5 * static_cast<double>(span.label.size()))
        out += text_at(at(span.begin_ms) + width / 2, y + 17, "middle", span.label, R"( style="fill:#fff")");
    }
  }
  return out + text_at((left + kRight) / 2, bottom + 34, "middle", "ms since the step began") + "</svg>\n";
}

}  // namespace lockstep::cli
