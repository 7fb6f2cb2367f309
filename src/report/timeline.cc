#include "report/timeline.h"

#include <fmt/format.h>

#include "report/svg.h"

namespace lockstep {
namespace {

constexpr double kWidth = 640, kLeft = 124, kRight = 622, kTop = 40, kRowHeight = 34;

}  // namespace

std::string render_timeline(const std::string& title, const std::vector<TimelineRow>& rows) {
  const double bottom = kTop + kRowHeight * static_cast<double>(rows.size());
  std::string out = svg::open(title, {.width = kWidth, .height = bottom + 44}, 14, 20);
  svg::Range x;
  for (const auto& row : rows)
    for (const auto& span : row.spans) {
      x.add(span.begin_ms);
      x.add(span.end_ms);
    }
  if (x.empty()) return out + svg::text(kWidth / 2, kTop + 20, "middle", "nothing yet") + "</svg>\n";
  const svg::Range range = x.widened();
  const auto at = [&](double ms) {
    return std::lerp(kLeft, kRight, (ms - range.low) / (range.high - range.low));
  };
  const double step = svg::tick_step(range.high - range.low, 8);
  for (const double v : svg::ticks(range, step))
    out += svg::line("grid", at(v), at(v), kTop, bottom) +
           svg::text(at(v), bottom + 16, "middle", svg::tick_text(v, step));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const double y = kTop + kRowHeight * static_cast<double>(r) + 4;
    out += svg::text(kLeft - 8, y + 17, "end", rows[r].name);
    for (const TimelineSpan& span : rows[r].spans) {
      const double width = std::max(1.0, at(span.end_ms) - at(span.begin_ms));
      out +=
          fmt::format(
              R"(<g><rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2" fill="{}" fill-opacity=".8"/><title>{}: {:.2f} to {:.2f} ms</title></g>)",
              at(span.begin_ms), y, width, kRowHeight - 8, svg::colour(static_cast<std::size_t>(span.colour)),
              svg::escape(span.label), span.begin_ms, span.end_ms) +
          "\n";
      if (width > 7.5 * static_cast<double>(span.label.size()))
        out +=
            svg::text(at(span.begin_ms) + width / 2, y + 17, "middle", span.label, R"( style="fill:#fff")");
    }
  }
  return out + svg::text((kLeft + kRight) / 2, bottom + 34, "middle", "ms since the step began") + "</svg>\n";
}

}  // namespace lockstep
