// Figures, folder, charts and page of a run, without running one.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/base/error.h"
#include "report/page.h"
#include "report/printable.h"
#include "report/run_display.h"
#include "report/run_folder.h"
#include "report/step_figures.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMs = 1'000'000;

StepRecord step_of(std::int64_t number, std::int64_t ms) {
  return {.step = number,
          .epoch = 1,
          .loss = 1.0 / static_cast<double>(number),
          .lr = 0.1,
          .samples = 64,
          .begin_ns = number * 1000 * kMs,
          .end_ns = (number * 1000 + ms) * kMs,
          .data_wait_ns = kMs,
          .comm_ns = 4 * kMs,
          .hidden_ns = 3 * kMs,
          .exposed_ns = kMs};
}

class RunFolderTest : public ::testing::Test {
 protected:
  RunFolderTest() {
    std::string name = (fs::temp_directory_path() / "lockstep-run-XXXXXX").string();
    base_ = ::mkdtemp(name.data());
    folder_ = base_ / "run";
  }
  ~RunFolderTest() override { fs::remove_all(base_); }
  fs::path base_, folder_;
};

TEST(TrainMetrics, UnionCountsOverlapsOnce) {
  const std::vector<BucketTimes> buckets = {{.start_ns = 10, .end_ns = 20},
                                            {.start_ns = 15, .end_ns = 30},
                                            {.start_ns = 40, .end_ns = 45},
                                            {.start_ns = 16, .end_ns = 18}};
  EXPECT_EQ(union_ns(buckets), 25);
  EXPECT_EQ(union_ns(buckets, 42), 22);
  EXPECT_EQ(union_ns({}), 0);
}

TEST(TrainMetrics, FiguresFollowTheirDefinitions) {
  const std::vector<StepRecord> steps = {step_of(1, 10), step_of(2, 10), step_of(3, 20)};
  const StepFigures f = figures_of(steps);
  EXPECT_DOUBLE_EQ(f.step_ms_p50, 10);
  EXPECT_DOUBLE_EQ(f.samples_per_s, 3 * 64 / 0.040);
  // compute = 40 - 3 exposed - 3 waiting = 34; comm = 12
  EXPECT_DOUBLE_EQ(f.comm_fraction, 12.0 / 46.0);
  EXPECT_DOUBLE_EQ(f.overlap_fraction, 0.75);
  EXPECT_DOUBLE_EQ(f.data_wait_fraction, 3.0 / 40.0);
  EXPECT_EQ(figures_of({}).samples_per_s, 0);
}

TEST(TrainMetrics, TheFinalLossIsThatOfTheLastEpoch) {
  const auto mean = [](std::vector<double> losses, NotFinite not_finite = NotFinite::counts) {
    const FinalLoss found = final_loss(losses, 3, not_finite);
    return std::pair(found.mean, found.steps);
  };
  EXPECT_EQ(mean({9, 9, 9, 1, 2, 6}), std::pair(3.0, std::int64_t{3}));
  EXPECT_EQ(mean({9, 9, 9, 1, 2, 6, 4}), std::pair(4.0, std::int64_t{3})) << "within an epoch";
  EXPECT_EQ(mean({2, 4}), std::pair(3.0, std::int64_t{2})) << "less than one";
  EXPECT_TRUE(std::isnan(mean({}).first));
  EXPECT_TRUE(std::isnan(mean({1, NAN, 3}).first));
  EXPECT_EQ(mean({1, NAN, 3}, NotFinite::was_skipped), std::pair(2.0, std::int64_t{2}));
  EXPECT_TRUE(std::isnan(mean({NAN}, NotFinite::was_skipped).first));
}

TEST(TrainMetrics, TheFirstStepsDontCountInALongRun) {
  std::vector<StepRecord> steps;
  for (int i = 1; i <= 20; ++i) steps.push_back(step_of(i, i <= 3 ? 1000 : 10));
  EXPECT_DOUBLE_EQ(figures_of(settled(steps)).step_ms_p95, 10);
  EXPECT_EQ(settled(std::span(steps).first(1)).size(), 1U);
}

TEST(TrainMetrics, LatencyTellsBucketsApart) {
  BucketLatencies latencies;
  const std::vector<BucketTimes> buckets = {{.bucket = 0, .bytes = 100, .start_ns = 0, .end_ns = 1000},
                                            {.bucket = 1, .bytes = 200, .start_ns = 0, .end_ns = 3000}};
  latencies.add(buckets);
  latencies.add(buckets);
  const std::string csv = latencies.csv();
  EXPECT_NE(csv.find("\n0,100,2,1.0,"), std::string::npos) << csv;
  EXPECT_NE(csv.find("\n1,200,2,3.0,"), std::string::npos) << csv;
  EXPECT_NE(csv.find("\nall,,4,"), std::string::npos) << csv;
}

TEST_F(RunFolderTest, ResumingCutsTheRowsAfterTheCheckpoint) {
  {
    RunFolder run(folder_, FolderUse::fresh, 0);
    for (int i = 1; i <= 6; ++i) run.add_step(step_of(i, 10), std::vector<BucketTimes>(2), 0);
    run.add_epoch({.step = 3, .epoch = 1});
    run.add_epoch({.step = 6, .epoch = 2});
  }
  const RunFolder run(folder_, FolderUse::resume, 4);
  EXPECT_EQ(read_csv(folder_ / "steps.csv").rows.size(), 4U);
  EXPECT_EQ(read_csv(folder_ / "buckets.csv").rows.size(), 8U);
  EXPECT_EQ(read_csv(folder_ / "epochs.csv").rows.size(), 1U);
}

TEST_F(RunFolderTest, SomebodysFilesAreNotOverwritten) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "thesis.tex") << "all of it";
  EXPECT_THROW(RunFolder(folder_, FolderUse::fresh, 0), UsageError);
  std::ofstream(folder_ / "summary.json") << R"({"lane_batch": 4})";
  const RunFolder run(folder_, FolderUse::overwrite, 0);
  EXPECT_TRUE(fs::exists(folder_ / "thesis.tex"));
  EXPECT_FALSE(fs::exists(folder_ / "summary.json"));
}

TEST_F(RunFolderTest, PageIsSelfContainedAndEscapes) {
  RunFolder run(folder_, FolderUse::fresh, 0);
  for (int i = 1; i <= 900; ++i) run.add_step(step_of(i, 10), {}, 0);
  run.add_epoch({.step = 900, .epoch = 1, .validation_loss = 0.5, .accuracy = 0.9});
  run.replace("config.json", R"({"model": "<script>", "data": "a&b", "workers": 2})");
  run.replace("summary.json", R"({"accuracy": 0.875, "final_loss": 0.25, "samples_per_s": 123})");
  const std::string page =
      render_page(folder_, {{"compute", {{.begin_ms = 0, .end_ms = 5, .label = "backward", .colour = 2}}}});
  EXPECT_NE(page.find("87.5 %"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("src="), std::string::npos);
  EXPECT_EQ(page.find("nan"), std::string::npos);
  std::size_t charts = 0;
  for (std::size_t at = 0; (at = page.find("<svg ", at)) != std::string::npos; ++at) ++charts;
  EXPECT_EQ(charts, 6U);
}

// The points of the first line of the chart with this title, as they are drawn.
std::vector<std::pair<double, double>> drawn(const std::string& page, const std::string& title) {
  std::vector<std::pair<double, double>> points;
  const std::size_t chart = page.find("aria-label=\"" + title + "\"");
  const std::string_view start = "<polyline points=\"";
  const std::size_t begin = page.find(start, chart) + start.size();
  std::istringstream text(page.substr(begin, page.find('"', begin) - begin));
  char comma = 0;
  for (double x = 0, y = 0; text >> x >> comma >> y;) points.emplace_back(x, y);
  return points;
}

// An epoch in two parts has two evaluations, each where it was made; epochs.csv has one line of it.
TEST_F(RunFolderTest, PageOfARunThatWasResumedInsideAnEpoch) {
  const auto do_steps = [](RunFolder& run, int first, int last, std::optional<double> accuracy) {
    for (int i = first; i <= last; ++i) {
      StepRecord step = step_of(i, 10);
      step.epoch = 1;
      run.add_step(step, {}, 0);
    }
    run.add_epoch({.step = last, .epoch = 1, .validation_loss = 2.0 / last, .accuracy = accuracy});
  };
  {
    RunFolder run(folder_, FolderUse::fresh, 0);
    do_steps(run, 1, 40, 0.2);
  }
  {
    RunFolder run(folder_, FolderUse::resume, 40);
    do_steps(run, 41, 80, 0.6);
  }
  RunFolder run(folder_, FolderUse::resume, 60);  // the later one is undone
  do_steps(run, 61, 100, 0.7);
  EXPECT_EQ(read_csv(folder_ / "epochs.csv").rows.size(), 1U);
  EXPECT_EQ(read_csv(folder_ / "evaluations.csv").numbers("step"), (std::vector<double>{40, 100}));
  const std::string page = render_page(folder_, {});
  const auto accuracy = drawn(page, "Accuracy on the test split");
  ASSERT_EQ(accuracy.size(), 2U);
  EXPECT_LT(accuracy[0].first + 100, accuracy[1].first);
  EXPECT_GT(accuracy[0].second, accuracy[1].second);  // upwards
  EXPECT_EQ(drawn(page, "Communication share").size(), 100U);
  EXPECT_NE(page.find(">validation</text>"), std::string::npos);
  // A folder of an earlier version.
  fs::remove(folder_ / "evaluations.csv");
  EXPECT_EQ(drawn(render_page(folder_, {}), "Accuracy on the test split").size(), 1U);
}

TEST_F(RunFolderTest, PageCountsInWords) {
  const RunFolder run(folder_, FolderUse::fresh, 0);
  run.replace("config.json", R"({"model": "mlp", "data": "d", "workers": 1, "lanes": 2, "lane_batch": 1})");
  EXPECT_NE(render_page(folder_, {}).find("<p>1 worker, 2 lanes × 1 sample, "), std::string::npos);
}

TEST_F(RunFolderTest, PageOfARunThatHasJustBegun) {
  const RunFolder run(folder_, FolderUse::fresh, 0);
  const std::string page = render_page(folder_, {});
  EXPECT_NE(page.find("nothing yet"), std::string::npos);
}

TEST(Printable, KeepsTextAndShowsTheRest) {
  EXPECT_EQ(printable("to be\n\tor ñ → 𝄞"), "to be\n\tor ñ → 𝄞");
  EXPECT_EQ(printable("a\x1b[1m\r\x7f\xff\xc3"), "a\\x1b[1m\\x0d\\x7f\\xff\\xc3");
  EXPECT_EQ(printable(std::string(1, '\0')), "\\x00");
  EXPECT_EQ(printable("\xc0\xaf\xed\xa0\x80\xc2\x9b"), "\\xc0\\xaf\\xed\\xa0\\x80\\xc2\\x9b");
}

TEST(RunDisplay, Durations) {
  EXPECT_EQ(format_duration(83), "1:23");
  EXPECT_EQ(format_duration(7384), "2:03:04");
}

}  // namespace
}  // namespace lockstep
