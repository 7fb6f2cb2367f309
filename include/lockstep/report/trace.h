// Spans of time as a Chrome trace, which ui.perfetto.dev and chrome://tracing show: one process a rank, one
// track a kind of work.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

struct TraceSpan {
  std::string name;
  int track = 0;
  std::int64_t begin_ns = 0;  // of now_ns()
  std::int64_t end_ns = 0;
  std::vector<std::pair<std::string, std::int64_t>> details = {};  // shown when the span is clicked on
};

struct TraceRank {
  int rank = 0;
  std::vector<std::string> tracks;  // names; their order is that on the screen
};

// The events of one rank: a part of the document. Times count from `origin_ns`, the same on all ranks.
std::string trace_events(const TraceRank& rank, std::span<const TraceSpan> spans, std::int64_t origin_ns);

// The document of all ranks' parts, one JSON object.
std::string trace_document(std::span<const std::string> parts);

}  // namespace lockstep
