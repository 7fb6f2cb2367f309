#include "report/chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(RunChart, DrawsALevelAndCutsPeaks) {
  Chart chart{.title = "t", .x_title = "x", .y_title = "ms", .series = {{"a", {}}}};
  for (int i = 0; i < 50; ++i) chart.series[0].points.emplace_back(i, i == 7 ? 1000 : 1);
  EXPECT_EQ(render_chart(chart).find("higher ones are cut"), std::string::npos);
  EXPECT_EQ(render_chart(chart).find("stroke-dasharray"), std::string::npos);
  EXPECT_NE(render_chart(chart).find(">1000<"), std::string::npos);
  chart.cut_peaks = true;
  chart.level = {"least", 0.5};
  const std::string cut = render_chart(chart);
  EXPECT_NE(cut.find("ms (higher ones are cut)"), std::string::npos);
  EXPECT_NE(cut.find("stroke-dasharray"), std::string::npos);
  EXPECT_NE(cut.find(">least</text>"), std::string::npos);
  EXPECT_EQ(cut.find(">1000<"), std::string::npos);
}

// A step between two lines of the grid that is lost in rounding: the next line would be the same, for ever.
TEST(RunChart, DrawsValuesThatDifferInTheirLastBit) {
  for (const double value : {0.1, 1.0, 1e17, -3e-9}) {
    Chart chart{.title = "t", .x_title = "x", .y_title = "y", .series = {{"a", {}}}};
    chart.series[0].points = {{1, value}, {2, std::nextafter(value, INFINITY)}};
    EXPECT_LT(render_chart(chart).size(), 10'000u) << value;
  }
}

TEST(RunChart, EscapesNamesAndRefusesWhatHasNoLogarithm) {
  const Chart plot{.title = "a < b & \"c\"",
                   .x_title = "x",
                   .y_title = "y",
                   .scale = ChartScale::logarithmic,
                   .legend = ChartLegend::beside,
                   .series = {{.name = "<1>", .points = {{1, 2}}}}};
  const std::string svg = render_chart(plot);
  EXPECT_NE(svg.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_NE(svg.find("&lt;1&gt;"), std::string::npos);
  Chart bad = plot;
  bad.series[0].points = {{0, 1}};
  EXPECT_THROW(render_chart(bad), UsageError);
  bad.series.clear();
  EXPECT_THROW(render_chart(bad), UsageError);
  bad.scale = ChartScale::linear;
  EXPECT_NE(render_chart(bad).find("nothing yet"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
