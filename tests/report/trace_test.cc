#include "lockstep/report/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

TEST(Trace, IsJsonWithNamedRanksAndTracks) {
  const std::vector<TraceSpan> spans = {
      {.name = "back\"ward", .track = 0, .begin_ns = 5000, .end_ns = 9500, .details = {{"step", 3}}},
      {.name = "bucket 0", .track = 1, .begin_ns = 6000, .end_ns = 7000}};
  const std::vector<std::string> parts = {
      trace_events({.rank = 0, .tracks = {"compute", "communication"}}, spans, 1000), "",
      trace_events({.rank = 1, .tracks = {"compute"}}, {}, 1000)};
  const auto document = nlohmann::json::parse(trace_document(parts));
  int spans_seen = 0, processes = 0, threads = 0;
  for (const auto& event : document.at("traceEvents")) {
    if (event.at("ph") == "X") ++spans_seen;
    if (event.at("name") == "process_name") ++processes;
    if (event.at("name") == "thread_name") ++threads;
    if (event.at("name") == "back\"ward") {
      EXPECT_DOUBLE_EQ(event.at("ts").get<double>(), 4.0);
      EXPECT_DOUBLE_EQ(event.at("dur").get<double>(), 4.5);
      EXPECT_EQ(event.at("args").at("step"), 3);
      EXPECT_EQ(event.at("pid"), 0);
    }
    if (event.at("name") == "bucket 0") {
      EXPECT_EQ(event.at("tid"), 1);
    }
  }
  EXPECT_EQ(spans_seen, 2);
  EXPECT_EQ(processes, 2);
  EXPECT_EQ(threads, 3);
}

TEST(Trace, OfNothingIsStillADocument) {
  EXPECT_TRUE(nlohmann::json::parse(trace_document({})).at("traceEvents").empty());
}

}  // namespace
}  // namespace lockstep
