#include "report/sweep.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "recipe/batch_sweep.h"
#include "report/batch_sweep.h"

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

TrainOptions base_run() {
  TrainOptions base;
  base.optimizer = "sgd";
  base.lr = 0.1;
  base.lanes = 2;
  base.lane_batch = 8;
  base.steps = 40;
  return base;
}

TEST(BatchSweep, EveryRunSeesTheSameExamples) {
  const std::vector<BatchRun> runs = batch_runs(
      base_run(), {.factors = {1, 4}, .recipes = {"fixed", "linear", "warmup"}, .warmup_part = 0.2});
  ASSERT_EQ(runs.size(), 6U);
  for (const BatchRun& run : runs) {
    EXPECT_EQ(run.options.lanes * run.options.lane_batch, run.batch);
    EXPECT_EQ(run.options.lane_batch, 8);
    EXPECT_EQ(run.batch * run.options.steps, 640);
    EXPECT_EQ(*run.options.lr, run.recipe == "fixed" ? 0.1 : 0.1 * static_cast<double>(run.factor));
    EXPECT_EQ(run.options.warmup_steps, run.recipe == "warmup" ? run.options.steps / 5 : 0);
  }
  EXPECT_EQ(to_json(runs[0].options), to_json(runs[1].options));  // at 1 × one run is enough
  TrainOptions epochs = base_run();
  epochs.steps = 0;
  epochs.examples = 160;
  epochs.epochs = 2;
  EXPECT_EQ(batch_runs(epochs, {.factors = {4}, .recipes = {"fixed"}})[0].options.steps, 5);
}

TEST(BatchSweep, RefusesWhatIsNoTable) {
  const auto refusal = [](const TrainOptions& base, const BatchSweep& sweep) {
    try {
      batch_runs(base, sweep);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto expect = [](const std::string& said, const char* words) {
    EXPECT_NE(said.find(words), std::string::npos) << said;
  };
  expect(refusal(base_run(), {.factors = {16}}),
         "40 steps of the base batch 16 are no whole number of steps at 16");
  expect(refusal(base_run(), {.factors = {1}, .recipes = {"linnear"}}), "Did you mean 'linear'?");
  expect(refusal(base_run(), {.factors = {1}, .recipes = {"lamb"}, .lamb_lr = 0}),
         "--lamb-lr '0' is out of range");
  expect(refusal(base_run(), {.factors = {1}, .recipes = {"fixed"}, .warmup_part = 1}), "--warmup-part '1'");
  expect(refusal(base_run(), {.factors = {1}, .recipes = {"fixed"}, .precisions = {"fp31"}}), "--precision");
  TrainOptions warm = base_run();
  warm.warmup_steps = 2;
  expect(refusal(warm, {.factors = {1}}), "--warmup-steps: the recipes say");
  warm.warmup_steps = 0;
  warm.warmup_epochs = 0.5;
  expect(refusal(warm, {.factors = {1}}), "--warmup-epochs: the recipes say");
  TrainOptions endless = base_run();
  endless.steps = 0;
  expect(refusal(endless, {}), "--steps (of the base batch), or --examples and --epochs");
  EXPECT_EQ(parse_factors("4,1,4"), (std::vector<std::int64_t>{1, 4}));
  for (const char* text : {"", "1,,2", "0", "2x", "-1"})
    EXPECT_THROW(parse_factors(text), UsageError) << text;
}

TEST(BatchSweep, TellsHowFarARecipeHolds) {
  std::vector<BatchSweepRow> rows;
  const auto add = [&](std::int64_t factor, const char* recipe, std::optional<double> accuracy) {
    rows.push_back({.factor = factor,
                    .batch = 16 * factor,
                    .recipe = recipe,
                    .precision = "fp32",
                    .lr = 0.1,
                    .accuracy = accuracy,
                    .final_loss = accuracy});
  };
  for (const std::int64_t factor : {1, 2, 4, 8}) {
    add(factor, "fixed", factor > 2 ? 0.80 : 0.90);
    add(factor, "warmup", factor > 4 ? std::nullopt : std::optional(0.896));
    add(factor, "lars", 0.89);
  }
  EXPECT_EQ(held_to(rows, "fixed", "fp32", 0.5), 2);
  EXPECT_EQ(held_to(rows, "warmup", "fp32", 0.5), 4);
  EXPECT_EQ(held_to(rows, "lars", "fp32", 0.5), 0);
  EXPECT_EQ(held_to(rows, "lars", "fp32", 1.1), 8);
  EXPECT_EQ(held_to(rows, "lars", "bf16", 5), 0);
  const std::string table = batch_sweep_table(rows, false);
  for (const char* words :
       {"warmup is within 0.5 points of the base accuracy up to 4 ×", "not finite", "89.60"})
    EXPECT_NE(table.find(words), std::string::npos) << table;
  EXPECT_NE(batch_sweep_csv(rows).find("\n4,64,warmup,fp32,0,0,0.1,0.896,,0.896,"), std::string::npos)
      << batch_sweep_csv(rows);
  EXPECT_NE(batch_sweep_plot(rows).find(">lars<"), std::string::npos);
  EXPECT_NE(batch_sweep_page(rows, "a < b", "lockstep sweep batch").find("<h1>a &lt; b</h1>"),
            std::string::npos);
  // Without `fixed` nobody knows.
  std::erase_if(rows, [](const BatchSweepRow& row) { return row.recipe == "fixed"; });
  const std::string alone = batch_sweep_table(rows, false);
  EXPECT_NE(alone.find("warmup has no base accuracy beside it"), std::string::npos) << alone;
  EXPECT_EQ(alone.find("within"), std::string::npos) << alone;
}

}  // namespace
}  // namespace lockstep
