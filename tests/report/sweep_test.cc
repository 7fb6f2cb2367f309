#include "report/sweep.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep {
namespace {

TEST(Sweep, CsvPlotAndMedian) {
  const std::vector<SweepRow> rows = {{.value = "0.5", .samples_per_s = 10, .comm_fraction = 0.5},
                                      {.value = "8", .samples_per_s = 20, .comm_fraction = 0.25}};
  EXPECT_NE(sweep_csv("bucket_cap_mb", rows).find("\n8,20.000,"), std::string::npos);
  const std::string plot = sweep_plot("bucket_cap_mb", rows);
  EXPECT_NE(plot.find(">0.5<"), std::string::npos);
  EXPECT_EQ(median_row({rows[1], rows[0], {.value = "x", .samples_per_s = 15}}).samples_per_s, 15);
}

TEST(Sweep, TellsTheLossOfEachValue) {
  const std::vector<SweepRow> rows = {{.value = "0.1", .samples_per_s = 10, .final_loss = 1.25},
                                      {.value = "10", .samples_per_s = 20, .final_loss = NAN}};
  const std::string table = sweep_table("lr", rows, false);
  for (const char* word : {"final loss", "1.2500", "not finite"})
    EXPECT_NE(table.find(word), std::string::npos) << table;
  EXPECT_NE(sweep_table("lr", rows, true).find("1.2500\033[0m"), std::string::npos);
  EXPECT_NE(sweep_plot("lr", rows).find("Final loss against lr"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
