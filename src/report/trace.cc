#include "lockstep/report/trace.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

void add(std::string& text, const Json& event) {
  if (!text.empty()) text += ",\n";
  text += event.dump();
}

Json name_event(const char* what, int rank, int track, const Json& arguments) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", track}, {"args", arguments}};
}

double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1000.0; }

}  // namespace

std::string trace_events(const TraceRank& rank, std::span<const TraceSpan> spans, std::int64_t origin_ns) {
  std::string text;
  add(text, name_event("process_name", rank.rank, 0, {{"name", fmt::format("rank {}", rank.rank)}}));
  add(text, name_event("process_sort_index", rank.rank, 0, {{"sort_index", rank.rank}}));
  for (int track = 0; track < static_cast<int>(rank.tracks.size()); ++track) {
    add(text, name_event("thread_name", rank.rank, track,
                         {{"name", rank.tracks[static_cast<std::size_t>(track)]}}));
    add(text, name_event("thread_sort_index", rank.rank, track, {{"sort_index", track}}));
  }
  for (const TraceSpan& span : spans) {
    Json event = {{"ph", "X"},
                  {"name", span.name},
                  {"pid", rank.rank},
                  {"tid", span.track},
                  {"ts", microseconds(span.begin_ns - origin_ns)},
                  {"dur", microseconds(span.end_ns - span.begin_ns)}};
    for (const auto& [key, value] : span.details) event["args"][key] = value;
    add(text, event);
  }
  return text;
}

std::string trace_document(std::span<const std::string> parts) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  bool first = true;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    if (!first) text += ",\n";
    text += part;
    first = false;
  }
  return text + "\n]}\n";
}

}  // namespace lockstep
