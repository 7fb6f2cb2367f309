#include "report/svg.h"

#include <fmt/format.h>

#include <array>

namespace lockstep::svg {

std::string escape(const std::string& text) {
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

std::string open(const std::string& title, const Canvas& canvas, double title_x, double title_y) {
  return fmt::format(
             R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" {2}role="img" aria-label="{3}">
<style>text{{font:{4}px system-ui,"DejaVu Sans",sans-serif;fill:#7a7a7a}}.title{{font-size:{5}px;font-weight:600}}.grid{{stroke:#808080;stroke-opacity:.25}}.axis{{stroke:#808080;fill:none}}</style>
)",
             canvas.width, canvas.height, canvas.attributes, escape(title), canvas.font_px,
             canvas.font_px + 2) +
         text(title_x, title_y, "start", title, R"( class="title")");
}

std::string text(double x, double y, const char* anchor, const std::string& words, const char* more) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}"{}>{}</text>)", x, y, anchor, more,
                     escape(words)) +
         "\n";
}

std::string line(const char* kind, double x1, double x2, double y1, double y2, const char* more) {
  return fmt::format(R"(<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"{}/>)", kind, x1, x2,
                     y1, y2, more) +
         "\n";
}

const char* colour(std::size_t index) {
  static constexpr std::array<const char*, kColours> kList = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                              "#b8860b", "#7a5fc7", "#56b4e9", "#8c564b"};
  return kList[index % kColours];
}

double tick_step(double span, int most) {
  const double rough = span / most, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double digit : {1.0, 2.0, 5.0})
    if (digit * power >= rough) return digit * power;
  return 10 * power;
}

std::vector<double> ticks(const Range& range, double step) {
  constexpr int kMost = 100;
  std::vector<double> found;
  const double first = std::ceil(range.low / step) * step;
  for (int i = 0; i < kMost; ++i) {
    const double value = first + i * step;
    if (!(value <= range.high + step / 1e6)) break;
    if (found.empty() || value > found.back()) found.push_back(value);
  }
  return found;
}

std::string tick_text(double value, double step) {
  if (std::abs(value) < step / 1e6) return "0";
  const int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(step))), 0, 6);
  return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace lockstep::svg
