// Rows, table, conclusion and plot of the benchmark.
#include "bench/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/observe/histogram.h"
#include "report/table.h"

namespace lockstep {
namespace {

BenchRow row(const std::string& engine, std::uint64_t bytes, double us) {
  BenchRow r;
  r.op = "all_reduce";
  r.engine = engine;
  r.algorithm = engine == "shm" ? "auto" : "native";
  r.memory = engine == "shm" ? "comm" : "private";
  r.dtype = "f32";
  r.reduction = "sum";
  r.workers = 2;
  r.bytes = bytes;
  r.iterations = 10;
  r.us = r.us_min = r.us_p25 = r.us_p75 = r.us_max = us;
  r.algbw_gbs = r.busbw_gbs = 1;
  r.floor_us = 5;
  r.floor_ratio = us / 5;
  r.checked = true;
  return r;
}

TEST(BenchRow, QuantilesInterpolate) {
  const std::vector<double> five = {1, 2, 3, 4, 10};
  EXPECT_DOUBLE_EQ(quantile_of_sorted(five, 0), 1);
  EXPECT_DOUBLE_EQ(quantile_of_sorted(five, 0.5), 3);
  EXPECT_DOUBLE_EQ(quantile_of_sorted(five, 0.875), 7);
  EXPECT_DOUBLE_EQ(quantile_of_sorted(five, 1), 10);
  const std::vector<double> one = {7};
  EXPECT_DOUBLE_EQ(quantile_of_sorted(one, 0.75), 7);
}

TEST(BenchRow, PeerRatioIsToTheFasterPeerWithARightResult) {
  std::vector<BenchRow> rows = {row("shm", 4096, 10), row("mpi", 4096, 40), row("gloo", 4096, 20)};
  fill_peer_ratio(rows);
  EXPECT_DOUBLE_EQ(rows[0].peer_ratio.value(), 0.5);
  EXPECT_DOUBLE_EQ(rows[1].peer_ratio.value(), 2);
  rows[2].checked = false;  // a wrong result is no measure
  fill_peer_ratio(rows);
  EXPECT_DOUBLE_EQ(rows[0].peer_ratio.value(), 0.25);
  std::vector<BenchRow> alone = {row("shm", 4096, 10)};
  fill_peer_ratio(alone);
  EXPECT_FALSE(alone[0].peer_ratio);
}

TEST(BenchRow, JsonComesBack) {
  BenchRow before = row("shm", 4096, 12.5);
  before.floor_us.reset();
  before.floor_ratio.reset();
  const nlohmann::ordered_json json = before;
  EXPECT_TRUE(json.at("floor_us").is_null());
  const auto after = json.get<BenchRow>();
  EXPECT_EQ(nlohmann::ordered_json(after), json);
  EXPECT_EQ(after.variant(), "shm auto, comm memory");
}

TEST(BenchTable, AlignsColumnsAndMarksWrongResults) {
  std::vector<BenchRow> rows = {row("shm", 4096, 1234.5), row("mpi", 4096, 2), row("shm", 1 << 20, 3)};
  rows[1].checked = false;
  const std::string plain = bench_table(rows, false);
  EXPECT_EQ(plain.find('\033'), std::string::npos);
  EXPECT_NE(plain.find("1 234"), std::string::npos);  // 1234.5 to the even microsecond
  EXPECT_NE(plain.find("WRONG RESULT"), std::string::npos);
  EXPECT_NE(plain.find("1 MiB"), std::string::npos);
  EXPECT_NE(bench_table(rows, true).find("\033[1m"), std::string::npos);

  Table table({{"a"}, {"name", Align::left}, {"b"}});
  table.add_row({{"1"}, {"µ"}, {"22"}});
  table.add_row({{"333"}, {"long one"}, {"4"}});
  EXPECT_EQ(table.render(false), "  a  name       b\n  1  µ         22\n333  long one   4\n");
}

TEST(BenchTable, NumbersKeepThreeDigits) {
  EXPECT_EQ(format_number(0.1234), "0.123");
  EXPECT_EQ(format_number(1.234), "1.23");
  EXPECT_EQ(format_number(12.34), "12.3");
  EXPECT_EQ(format_number(123.4), "123");
  EXPECT_EQ(format_number(1234567), "1 234 567");
}

TEST(BenchConclusion, NamesTheFastestPerRangeOfSizes) {
  std::vector<BenchRow> small = {row("shm", 4096, 10), row("mpi", 4096, 40)};
  std::vector<BenchRow> large = {row("shm", 1 << 20, 90), row("mpi", 1 << 20, 30)};
  fill_peer_ratio(small);
  fill_peer_ratio(large);
  std::vector<BenchRow> rows = small;
  EXPECT_EQ(bench_conclusion(rows),
            "Fastest: at 4 KiB shm auto (comm memory), 0.250 of the time of the fastest peer.");
  rows.insert(rows.end(), large.begin(), large.end());
  EXPECT_EQ(bench_conclusion(rows),
            "Fastest: at 4 KiB shm auto (comm memory), 0.250 of the time of the fastest peer; "
            "at 1 MiB mpi native (private memory).");
  EXPECT_EQ(bench_conclusion({}), "");
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
}

TEST(BenchPlot, DrawsOneLineAVariantAndTheFloor) {
  const std::string svg = bench_plot({row("shm", 4096, 10), row("mpi", 4096, 40), row("shm", 1 << 20, 90)});
  EXPECT_EQ(occurrences(svg, "<polyline"), 3U);
  EXPECT_EQ(occurrences(svg, ">shm auto, comm memory<"), 1U);
  EXPECT_EQ(occurrences(svg, "stroke-dasharray"), 2U);  // the floor's line and its sample
  EXPECT_EQ(occurrences(svg, "<svg "), occurrences(svg, "</svg>"));
}

}  // namespace
}  // namespace lockstep
