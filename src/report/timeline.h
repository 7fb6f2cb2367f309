// What happened when, as SVG: one row a track.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

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

}  // namespace lockstep
