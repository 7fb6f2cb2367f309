#include "report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "report/svg.h"

namespace lockstep {
namespace {

using svg::Range;
using Points = std::vector<std::pair<double, double>>;

constexpr std::size_t kMostPoints = 560;  // a line is drawn with; more are averaged
constexpr std::size_t kMostMarked = 24;   // points of a line that has a marker at each
constexpr double kPeak = 4;               // times the median: higher values are rare
constexpr double kLabelWidth = 48;        // labels must not touch
constexpr const char* kGrey = "#808080";
constexpr const char* kDashes = R"( stroke-dasharray="6 5")";
constexpr const char* kShortDashes = R"( stroke-dasharray="2 3")";

// Where things are drawn: the whole, and the area of the values in it.
struct Layout {
  double width, height, left, right, top, bottom;
  double margin_x;  // inside of the area
};
constexpr Layout kSmall = {640, 300, 62, 622, 62, 250, 0};
constexpr Layout kLarge = {900, 460, 70, 630, 56, 396, 16};

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

double median_of(Points points) {
  if (points.empty()) return 0;
  const auto middle = points.begin() + std::ssize(points) / 2;
  std::ranges::nth_element(points, middle, {}, &Points::value_type::second);
  return middle->second;
}

// From values to pixels.
class Axis {
 public:
  Axis() = default;
  Axis(Range range, ChartScale scale, double from, double to)
      : log_(scale == ChartScale::logarithmic), from_(from), to_(to) {
    low_ = place(range.low);
    span_ = log_ ? std::max(1e-9, place(range.high) - low_) : range.high - range.low;
  }
  double operator()(double value) const { return std::lerp(from_, to_, (place(value) - low_) / span_); }

 private:
  double place(double value) const { return log_ ? std::log10(value) : value; }

  bool log_ = false;
  double low_ = 0, span_ = 1, from_ = 0, to_ = 0;
};

std::string marker(std::size_t index, double x, double y, const char* colour) {
  if (index % 3 == 1)
    return fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="7" height="7" fill="{}"/>)", x - 3.5, y - 3.5,
                       colour);
  if (index % 3 == 2)
    return fmt::format(R"(<path d="M{:.1f} {:.1f}l4.5 8h-9z" fill="{}"/>)", x, y - 5, colour);
  return fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="{}"/>)", x, y, colour);
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart)
      : chart_(chart), at_(chart.legend == ChartLegend::beside ? kLarge : kSmall) {
    // Of a stacked chart each series lies on the one before.
    for (const ChartSeries& series : chart.series) {
      Points points = thinned(series.points);
      if (chart.kind == ChartKind::stacked && !lines_.empty())
        for (std::size_t i = 0; i < std::min(points.size(), lines_.back().size()); ++i)
          points[i].second += lines_.back()[i].second;
      lines_.push_back(std::move(points));
    }
    if (chart.cut_peaks && !lines_.empty()) cut(kPeak * median_of(lines_.back()));
  }

  std::string render() {
    const bool beside = chart_.legend == ChartLegend::beside;
    std::string out = svg::open(
        chart_.title,
        {.width = at_.width,
         .height = at_.height,
         .font_px = beside ? 13 : 12,
         .attributes =
             beside ? fmt::format(R"(width="{:.0f}" height="{:.0f}" )", at_.width, at_.height) : ""},
        beside ? 30 : 14, beside ? 24 : 20);
    if (!find_ranges())
      return out + svg::text(at_.width / 2, at_.height / 2, "middle", "nothing yet") + "</svg>\n";
    x_ = Axis(range_x_, chart_.scale, at_.left + at_.margin_x, at_.right - at_.margin_x);
    y_ = Axis(range_y_, chart_.scale, at_.bottom, at_.top);
    out += axes();
    for (std::size_t i = 0; i < lines_.size(); ++i)
      out += chart_.kind == ChartKind::lines ? line_of(i) : area_of(i);
    if (chart_.level)
      out += svg::line("axis", at_.left, at_.right, y_(chart_.level->y), y_(chart_.level->y), kLevel);
    if (beside) return out + "</svg>\n";
    return out + (chart_.series.size() > 1 || chart_.level ? legend_above() : "") + "</svg>\n";
  }

 private:
  static constexpr const char* kLevel = R"( stroke-width="1.6" stroke-dasharray="6 5")";

  bool is_log() const { return chart_.scale == ChartScale::logarithmic; }

  void cut(double most) {
    for (Points& points : lines_)
      for (auto& p : points) {
        cut_ = cut_ || p.second > most;
        p.second = std::min(p.second, most);
      }
  }

  // False when there is nothing to draw.
  bool find_ranges() {
    Range x, y;
    for (const Points& points : lines_)
      for (const auto& [px, py] : points) {
        if (is_log() && (!(px > 0) || !(py > 0)))
          throw UsageError("plot: a logarithmic axis takes values above 0");
        x.add(px);
        y.add(py);
      }
    if (x.empty() && is_log()) throw UsageError("plot: there is nothing to draw");
    if (x.empty()) return false;
    if (is_log()) {
      range_x_ = x.low == x.high ? Range{x.low / 2, x.high * 2} : x;
      range_y_ = {y.low / 1.4, y.high * 1.4};
      return true;
    }
    if (chart_.from_zero || chart_.kind == ChartKind::stacked) y.low = 0;
    if (chart_.level) y.add(chart_.level->y);
    range_x_ = x.widened();
    range_y_ = y.widened();
    const double margin = (range_y_.high - range_y_.low) * 0.06;
    range_y_.high += margin;
    if (range_y_.low != 0) range_y_.low -= margin;
    return true;
  }

  std::string grid_line(double value, const std::string& label) const {
    return svg::line("grid", at_.left, at_.right, y_(value), y_(value)) +
           svg::text(at_.left - (is_log() ? 8 : 7), y_(value) + 4, "end", label);
  }

  std::string linear_grid() const {
    std::string out;
    const double step = svg::tick_step(range_y_.high - range_y_.low, 5);
    for (const double v : svg::ticks(range_y_, step)) out += grid_line(v, svg::tick_text(v, step));
    return out;
  }

  // Lines at 1, 2 and 5 times a power of ten; when there are many, at the powers alone.
  std::string logarithmic_grid() const {
    std::string out;
    const double decades = std::log10(range_y_.high / range_y_.low);
    const int first = static_cast<int>(std::floor(std::log10(range_y_.low)));
    for (int e = first; e <= first + static_cast<int>(decades) + 2; ++e)
      for (const int digit : {1, 2, 5}) {
        const double value = digit * std::pow(10.0, e);
        if (value < range_y_.low * 0.999 || value > range_y_.high * 1.001 || (decades > 2.5 && digit != 1))
          continue;
        out += grid_line(value, value >= 1 ? fmt::format("{:.0f}", value) : fmt::format("{:g}", value));
      }
    return out;
  }

  std::string x_labels() const {
    std::string out;
    const bool beside = chart_.legend == ChartLegend::beside;
    if (chart_.x_ticks.empty() && !is_log()) {
      const double step = std::max(1.0, svg::tick_step(range_x_.high - range_x_.low, 8));
      for (const double v : svg::ticks(range_x_, step))
        out += svg::text(x_(v), at_.bottom + 17, "middle", svg::tick_text(v, step));
    }
    double last = -1e9;
    for (const auto& [value, label] : chart_.x_ticks) {
      const double x = x_(value);
      if (beside) out += svg::line("axis", x, x, at_.bottom, at_.bottom + 5);
      if (beside && x - last < kLabelWidth) continue;
      out += svg::text(x, at_.bottom + (beside ? 20 : 17), "middle", label);
      last = x;
    }
    return out;
  }

  std::string axes() const {
    const bool beside = chart_.legend == ChartLegend::beside;
    std::string out = is_log() ? logarithmic_grid() : linear_grid();
    out += x_labels();
    out += fmt::format(R"(<path class="axis" d="M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}"/>)", at_.left, at_.top,
                       at_.bottom, at_.right) +
           "\n";
    out += svg::text((at_.left + at_.right) / 2, at_.bottom + (beside ? 44 : 36), "middle", chart_.x_title);
    return out + svg::text(beside ? at_.left : 14, at_.top - (beside ? 10 : 9), beside ? "middle" : "start",
                           cut_ ? chart_.y_title + " (higher ones are cut)" : chart_.y_title);
  }

  std::string coordinates(const Points& points) const {
    std::string text;
    for (const auto& [x, y] : points)
      text += fmt::format("{}{:.1f},{:.1f}", text.empty() ? "" : " ", x_(x), y_(y));
    return text;
  }

  std::string line_of(std::size_t i) {
    const ChartSeries& series = chart_.series[i];
    if (chart_.legend == ChartLegend::beside) return lines_[i].empty() ? "" : line_with_legend(i);
    const char* const colour = series.reference ? kGrey : svg::colour(i);
    std::string dots;
    if (lines_[i].size() <= kMostMarked)
      for (const auto& [x, y] : lines_[i])
        dots += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3.2" fill="{}"/>)", x_(x), y_(y), colour);
    return fmt::format(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="1.8"{}/>)",
                       coordinates(lines_[i]), colour, series.reference ? kDashes : "") +
           dots + "\n";
  }

  // The second round of colours is told from the first by short dashes; the marker repeats the distinction.
  std::string line_with_legend(std::size_t i) {
    const ChartSeries& series = chart_.series[i];
    const char* const colour = series.reference ? kGrey : svg::colour(beside_);
    const char* const dash = series.reference ? kDashes : beside_ >= svg::kColours ? kShortDashes : "";
    const double from = at_.right + 16, y = legend_y_;
    std::string out = fmt::format(R"(<polyline points="{0}" fill="none" stroke="{1}" stroke-width="2"{2}/>
<line x1="{3:.1f}" x2="{4:.1f}" y1="{5:.1f}" y2="{5:.1f}" stroke="{1}" stroke-width="2"{2}/>
)",
                                  coordinates(lines_[i]), colour, dash, from, from + 24, y);
    if (!series.reference) {
      for (const auto& [px, py] : lines_[i]) out += marker(beside_, x_(px), y_(py), colour) + "\n";
      out += marker(beside_++, from + 12, y, colour) + "\n";
    }
    legend_y_ += 21;
    return out + svg::text(from + 32, y + 4, "start", series.name);
  }

  std::string area_of(std::size_t i) const {
    Points below = i == 0 ? lines_[0] : lines_[i - 1];
    if (i == 0)
      for (auto& p : below) p.second = 0;
    std::string text;
    for (const auto& [x, y] : lines_[i]) text += fmt::format("{:.1f},{:.1f} ", x_(x), y_(y));
    for (auto p = below.rbegin(); p != below.rend(); ++p)
      text += fmt::format("{:.1f},{:.1f} ", x_(p->first), y_(p->second));
    return fmt::format(R"(<polygon points="{}" fill="{}" fill-opacity=".75"/>)", text, svg::colour(i)) + "\n";
  }

  // From the right: the level, then the series.
  std::string legend_above() const {
    std::string out;
    double x = at_.right;
    if (chart_.level) {
      x -= 7.0 * static_cast<double>(chart_.level->name.size());
      out += svg::text(x, at_.top - 9, "start", chart_.level->name) +
             svg::line("axis", x - 28, x - 5, at_.top - 13, at_.top - 13, kLevel);
      x -= 40;
    }
    for (std::size_t i = chart_.series.size(); i-- > 0;) {
      x -= 7.0 * static_cast<double>(chart_.series[i].name.size());
      out += svg::text(x, at_.top - 9, "start", chart_.series[i].name) +
             fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="10" height="10" rx="2" fill="{}"/>)", x - 14,
                         at_.top - 18, svg::colour(i)) +
             "\n";
      x -= 26;
    }
    return out;
  }

  const Chart& chart_;
  Layout at_;
  std::vector<Points> lines_;  // by series, as they are drawn
  bool cut_ = false;
  Range range_x_, range_y_;
  Axis x_, y_;
  std::size_t beside_ = 0;  // lines that the legend has so far
  double legend_y_ = kLarge.top + 8;
};

}  // namespace

std::string render_chart(const Chart& chart) { return Drawing(chart).render(); }

std::string stacked_charts(const std::vector<std::string>& charts) {
  std::string all;
  int y = 0;
  for (std::string element : charts) {  // of 640 × 300
    element.insert(element.find("<svg ") + 5, fmt::format("y=\"{}\" height=\"300\" ", y));
    all += element;
    y += 300;
  }
  return fmt::format(
             R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {}" width="960" height="{}">)", y,
             y * 3 / 2) +
         "\n" + all + "</svg>\n";
}

}  // namespace lockstep
