#include "lockstep/report/csv.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class TextFile : public ::testing::Test {
 protected:
  TextFile() {
    std::string name = (fs::temp_directory_path() / "lockstep-text-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~TextFile() override { fs::remove_all(folder_); }

  std::string text_of(const char* name) const {
    std::stringstream text;
    text << std::ifstream(folder_ / name).rdbuf();
    return text.str();
  }
  static bool all(std::int64_t) { return true; }

  fs::path folder_;
};

TEST_F(TextFile, CsvGrowsAndIsReadBack) {
  CsvFile csv(folder_ / "s.csv", {"step", "loss", "name"}, all);
  csv.add_row("1,0.5,shm");
  csv.add_row("2,,ring");
  EXPECT_EQ(text_of("s.csv"), "step,loss,name\n");  // nothing half-written before the flush
  csv.flush();
  const CsvTable table = read_csv(folder_ / "s.csv");
  ASSERT_EQ(table.rows.size(), 2U);
  EXPECT_EQ(table.rows[1][2], "ring");
  EXPECT_EQ(table.numbers("step"), (std::vector<double>{1, 2}));
  EXPECT_EQ(table.numbers("loss")[0], 0.5);
  EXPECT_TRUE(std::isnan(table.numbers("loss")[1]));
  EXPECT_TRUE(table.numbers("other").empty());
}

TEST_F(TextFile, ALineThatIsNoRowIsLeftOut) {
  std::ofstream(folder_ / "s.csv") << "step,loss\n1,0\n2\n3,0\n4,0,0\n5,0\n";
  std::vector<std::string> left_out;
  EXPECT_EQ(read_csv(folder_ / "s.csv", &left_out).rows.size(), 3U);
  EXPECT_EQ(left_out, (std::vector<std::string>{"line 3 has 1 cells, not 2", "line 5 has 3 cells, not 2"}));
  EXPECT_THROW(read_csv(folder_ / "s.csv"), UsageError);
  CsvFile csv(folder_ / "s.csv", {"step", "loss"}, all);
  EXPECT_EQ(text_of("s.csv"), "step,loss\n1,0\n3,0\n5,0\n");
}

TEST_F(TextFile, CsvGoesOnWithTheRowsThatStay) {
  {
    CsvFile csv(folder_ / "s.csv", {"step", "loss"}, all);
    for (int i = 1; i <= 5; ++i) csv.add_row(std::to_string(i) + ",0");
    csv.flush();
  }
  std::ofstream(folder_ / "s.csv", std::ios::app) << "6,0.1";  // its writer was killed
  CsvFile csv(folder_ / "s.csv", {"step", "loss"}, [](std::int64_t step) { return step <= 3; });
  csv.add_row("4,9");
  csv.flush();
  EXPECT_EQ(text_of("s.csv"), "step,loss\n1,0\n2,0\n3,0\n4,9\n");
}

TEST_F(TextFile, CsvOfOtherColumnsOrShapeIsRefused) {
  std::ofstream(folder_ / "s.csv") << "step,los\n1,2\n";
  EXPECT_THROW(CsvFile(folder_ / "s.csv", {"step", "loss"}, all), UsageError);
  EXPECT_EQ(text_of("s.csv"), "step,los\n1,2\n");
  std::ofstream(folder_ / "s.csv") << "step,loss\n1,2,3\n";
  EXPECT_THROW(read_csv(folder_ / "s.csv"), UsageError);
  EXPECT_THROW(read_csv(folder_ / "none.csv"), SystemError);
}

}  // namespace
}  // namespace lockstep
