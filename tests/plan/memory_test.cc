// What a worker's model state takes, against figures that others have published or that are added up by hand.
#include "plan/memory.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/parallel/strategy_names.h"

namespace lockstep {
namespace {

constexpr double kGB = 1e9;
constexpr double kMiB = 1 << 20;

// 16 bits with f32 masters and two moments: 2 + 2 + 12 bytes a parameter.
ModelSize narrow(double count) { return {.parameters = {{.count = count, .element_bytes = 2}}}; }
StateForm adam(int stage, int workers) { return {.stage = stage, .workers = workers, .master_bytes = 4}; }

// Table 1 of the paper: a worker's GB with mixed precision and Adam, to its digits. Where it rounds to whole
// numbers (128 B, 1 T) so does this.
TEST(StateBytes, AreTheFiguresOfThePaper) {
  const struct {
    double count;
    int workers;
    double gb[4];
    double within;
  } table[] = {{7.5e9, 1, {120, 120, 120, 120}, 0.05},      {7.5e9, 4, {120, 52.5, 41.3, 30}, 0.06},
               {7.5e9, 16, {120, 35.6, 21.6, 7.5}, 0.06},   {7.5e9, 64, {120, 31.4, 16.6, 1.88}, 0.06},
               {7.5e9, 256, {120, 30.4, 15.4, 0.47}, 0.06}, {7.5e9, 1024, {120, 30.1, 15.1, 0.12}, 0.06},
               {128e9, 64, {2048, 536, 284, 32}, 0.5},      {128e9, 1024, {2048, 513, 257, 2}, 1},
               {1e12, 64, {16000, 4187, 2218, 250}, 1},     {1e12, 1024, {16000, 4011, 2013, 15.6}, 1}};
  for (const auto& row : table)
    for (int stage = 0; stage < 4; ++stage)
      EXPECT_NEAR(state_bytes(narrow(row.count), adam(stage, row.workers)).state() / kGB, row.gb[stage],
                  row.within)
          << row.count << " parameters, stage " << stage << ", " << row.workers << " workers";
}

TEST(StateBytes, AreDividedKindByKind) {
  const double count = 6400;
  const double expected[4][3] = {{2, 2, 12}, {2, 2, 3}, {2, 0.5, 3}, {0.5, 0.5, 3}};
  for (int stage = 0; stage < 4; ++stage) {
    const StateBytes bytes = state_bytes(narrow(count), adam(stage, 4));
    EXPECT_DOUBLE_EQ(bytes.parameters, expected[stage][0] * count) << stage;
    EXPECT_DOUBLE_EQ(bytes.gradients, expected[stage][1] * count) << stage;
    EXPECT_DOUBLE_EQ(bytes.optimizer, expected[stage][2] * count) << stage;
    EXPECT_DOUBLE_EQ(bytes.total(), bytes.state() + bytes.in_flight) << stage;
  }
}

TEST(StateBytes, FollowPrecisionOptimizerAndWhatIsFrozen) {
  const ModelSize wide{.parameters = {{.count = 10, .element_bytes = 4}}};
  EXPECT_EQ(state_bytes(wide, {.moments = 2}).total(), 10 * (4 + 4 + 8));
  EXPECT_EQ(state_bytes(wide, {.moments = 1}).total(), 10 * (4 + 4 + 4));
  EXPECT_EQ(state_bytes(wide, {.moments = 0, .master_bytes = 4}).total(),
            10 * (4 + 4));  // f32 is its own master
  EXPECT_EQ(state_bytes(narrow(10), {.moments = 1, .master_bytes = 4}).total(), 10 * (2 + 2 + 8));
  EXPECT_EQ(state_bytes(narrow(10), {.moments = 2}).total(),
            10 * (2 + 2 + 4));  // a model that was 16-bit before
  EXPECT_EQ(state_bytes(narrow(10), {.master_bytes = 4, .least_gradient_bytes = 4}).gradients, 10 * 4);
  EXPECT_EQ(state_bytes(wide, {.least_gradient_bytes = 4}).gradients, 10 * 4);
  // Batch norm stays f32, and half of the rest is frozen.
  const ModelSize mixed{.parameters = {{.count = 8, .element_bytes = 2},
                                       {.count = 8, .element_bytes = 2, .trained = false},
                                       {.count = 3, .element_bytes = 4}}};
  const StateBytes bytes = state_bytes(mixed, {.master_bytes = 4});
  EXPECT_EQ(mixed.count(), 19);
  EXPECT_EQ(bytes.parameters, 16 * 2 + 3 * 4);
  EXPECT_EQ(bytes.gradients, 8 * 2 + 3 * 4);
  EXPECT_EQ(bytes.optimizer, 8 * 12 + 3 * 8);
  EXPECT_EQ(moments_of("adamw", 0.9), 2);
  EXPECT_EQ(moments_of("torch-adam", 0.9), 2);
  EXPECT_EQ(moments_of("lamb", 0), 2);
  for (const char* one : {"sgd", "torch-sgd", "lars"}) {
    EXPECT_EQ(moments_of(one, 0.9), 1) << one;
    EXPECT_EQ(moments_of(one, 0), 0) << one;
  }
}

TEST(StateBytes, CountBucketsInFlight) {
  ModelSize large = narrow(7.5e9);
  for (const int stage : {0, 1}) EXPECT_EQ(state_bytes(large, adam(stage, 64)).in_flight, 0);
  for (const int stage : {2, 3}) EXPECT_EQ(state_bytes(large, adam(stage, 64)).in_flight, 3 * 25 * kMiB);
  // A tensor larger than a bucket is one by itself; a small model is never in flight twice.
  large.largest_tensor = {.count = 50 * kMiB, .element_bytes = 2};
  EXPECT_EQ(state_bytes(large, adam(2, 64)).in_flight, 3 * 100 * kMiB);
  EXPECT_EQ(state_bytes(narrow(1000), adam(3, 4)).in_flight, 2000);
}

// Of three workers on two machines the one alone has a copy of its own, in which the others' updates arrive.
TEST(StateBytes, KnowACopyOfAWorkerAlone) {
  StateForm form = adam(3, 3);
  form.machine_workers = 1;
  EXPECT_TRUE(form.has_to_gather());
  form.one_copy = true;
  EXPECT_FALSE(form.has_to_gather());
  EXPECT_EQ(state_bytes(narrow(7.5e9), form).parameters, 15e9);
  EXPECT_EQ(state_bytes(narrow(7.5e9), form).in_flight, (3 + 2) * 25 * kMiB);
}

// Of parameters on disk a few parts of buckets are in memory, which end where units end.
TEST(StateBytes, KnowParametersOnDisk) {
  ModelSize large = narrow(7.5e9);
  large.largest_unit_bytes = 10e6;
  StateForm form = adam(3, 4);
  form.params_on_disk = form.gathers = true;
  EXPECT_EQ(state_bytes(large, form).params_on_disk, 15e9 / 4);
  EXPECT_EQ(state_bytes(large, form).parameters, 4 * 10e6 / 4);
  EXPECT_EQ(state_bytes(large, form).in_flight, 3 * 10e6 + 2 * 10e6);
  large.largest_unit_bytes = 1e9;
  EXPECT_EQ(state_bytes(large, form).parameters, 25 * kMiB);
  form.stage = 2;
  EXPECT_EQ(state_bytes(large, form).params_on_disk, 0);
  EXPECT_EQ(state_bytes(large, form).parameters, 15e9);
}

// What is on disk leaves whole pages in memory, as many as there are, or six.
TEST(StateBytes, KnowStateOnDisk) {
  StateForm form = adam(1, 1);
  form.staging_bytes = 24 * kMiB;
  EXPECT_EQ(state_bytes(narrow(7.5e9), form).optimizer, 24 * kMiB);
  EXPECT_EQ(state_bytes(narrow(1 * kMiB), form).optimizer, 12 * kMiB);
  EXPECT_EQ(state_bytes(narrow(1 * kMiB + 1), form).optimizer, 16 * kMiB);
  EXPECT_EQ(state_bytes(narrow(1 * kMiB + 1), form).on_disk, 12 * kMiB + 12);
}

// One copy of the parameters a machine: their share is that of its workers.
TEST(StateBytes, KnowMachines) {
  ModelSize large = narrow(7.5e9);
  large.parameters.push_back({.count = 100, .element_bytes = 4, .trained = false});
  large.largest_unit_bytes = 2 * 200e6;
  const double buckets = 3 * 25 * kMiB, frozen = 400;
  const auto on = [&](int machine_workers, int stage) {
    StateForm form = adam(stage, 64);
    form.machine_workers = machine_workers;
    return state_bytes(large, form);
  };
  EXPECT_EQ(on(64, 3).parameters, 15e9 / 64 + frozen);
  EXPECT_EQ(on(64, 3).in_flight, buckets);
  EXPECT_EQ(on(8, 3).parameters, 15e9 / 8 + frozen);
  EXPECT_EQ(on(8, 3).gradients, 15e9 / 64);
  EXPECT_EQ(on(8, 3).in_flight, buckets + 2 * 25 * kMiB);  // what other machines updated arrives
  EXPECT_EQ(on(1, 3).parameters, 15e9 / 64 + frozen);      // gathered, unit by unit
  EXPECT_EQ(on(1, 3).in_flight, buckets + 2 * 400e6);
  EXPECT_EQ(on(8, 2).in_flight, buckets);
  for (const int stage : {0, 1, 2}) EXPECT_EQ(on(1, stage).total(), on(64, stage).total()) << stage;
  EXPECT_TRUE((StateForm{.stage = 3, .workers = 2, .machine_workers = 1}).has_to_gather());
  EXPECT_FALSE((StateForm{.stage = 3, .workers = 2}).has_to_gather());
  EXPECT_FALSE((StateForm{.stage = 3, .workers = 1}).has_to_gather());
  EXPECT_FALSE((StateForm{.stage = 2, .workers = 2, .machine_workers = 1}).has_to_gather());
}

// A set holds all parameters between its workers, while gradients and state are divided among all.
TEST(StateBytes, KnowSetsOfWorkers) {
  ModelSize large = narrow(7.5e9);
  large.largest_unit_bytes = 10e6;
  StateForm form = adam(3, 8);
  form.gathers = true;
  form.sharers = 2;
  EXPECT_EQ(state_bytes(large, form).parameters, 15e9 / 2);
  EXPECT_EQ(state_bytes(large, form).gradients, 15e9 / 8);
  EXPECT_EQ(state_bytes(large, form).optimizer, 7.5e9 * 12 / 8);
  form.params_on_disk = true;
  EXPECT_EQ(state_bytes(large, form).params_on_disk, 15e9 / 2);
  EXPECT_EQ(state_bytes(large, form).parameters, 2 * 10e6 / 2 + 2 * 10e6 / 8);
}

// They have no memory in common, and state that is elsewhere takes none of theirs.
TEST(StateBytes, GpusGatherAndKeepNothingOfWhatIsOffloaded) {
  ModelSize large = narrow(7.5e9);
  large.largest_unit_bytes = 2 * 200e6;
  StateForm form = adam(3, 64);
  form.on_gpus = true;
  EXPECT_EQ(state_bytes(large, form).parameters, 15e9 / 64);
  EXPECT_EQ(state_bytes(large, form).in_flight, 3 * 25 * kMiB + 2 * 400e6);
  EXPECT_EQ(state_bytes(large, form).optimizer, 7.5e9 * 12 / 64);
  form.staging_bytes = 24 * kMiB;
  EXPECT_EQ(state_bytes(large, form).optimizer, 0);
  EXPECT_EQ(state_bytes(large, form).on_disk, 7.5e9 * 12 / 64);
  form.workers = form.machine_workers = 1;
  EXPECT_FALSE(form.has_to_gather());
}

// Whose workers have one copy of the parameters there, as on the processor.
TEST(StateBytes, OneGpuGathersNothing) {
  ModelSize large = narrow(7.5e9);
  large.largest_unit_bytes = 2 * 200e6;
  StateForm form = adam(3, 4);
  form.on_gpus = form.one_gpu = true;
  EXPECT_FALSE(form.has_to_gather());
  EXPECT_EQ(state_bytes(large, form).parameters, 15e9 / 4);
  EXPECT_EQ(state_bytes(large, form).in_flight, 3 * 25 * kMiB);
  form.gathers = true;
  EXPECT_EQ(state_bytes(large, form).in_flight, 3 * 25 * kMiB + 2 * 400e6);
}

// Sums of lanes wait for each other in whole buckets, which no stage divides.
TEST(StateBytes, LanesKeepGradientsWhole) {
  const int sets[] = {1, 1, 1, 2, 2, 2, 2, 3, 3};  // by the number of lanes; 0: a worker without any
  for (int lanes = 0; lanes <= 8; ++lanes) EXPECT_EQ(gradient_sets(lanes), sets[lanes]) << lanes;
  for (int stage = 0; stage < 4; ++stage) {
    const double own = stage >= 2 ? 2000.0 / 4 : 0;  // beside them
    StateForm form = adam(stage, 4);
    form.lanes = 8;
    EXPECT_EQ(state_bytes(narrow(1000), form).gradients, 3 * 2000 + own) << stage;
    EXPECT_EQ(state_bytes(narrow(1000), form).in_flight, 0) << stage;
    form.lanes = 2;
    EXPECT_EQ(state_bytes(narrow(1000), form).gradients, 2000 + own) << stage;
  }
}

TEST(StateBytes, EveryStrategyIsAStage) {
  for (const char* name : kStageStrategies) EXPECT_EQ(kStageStrategies[stage_of(name)], std::string(name));
  for (const char* name : kStrategyNames) EXPECT_GE(stage_of(name), 0);
  EXPECT_EQ(stage_of("zero3"), 3);
  EXPECT_THROW(stage_of("zero4"), UsageError);
}

}  // namespace
}  // namespace lockstep
