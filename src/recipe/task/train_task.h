// A recipe made real: the data, the model and the loss that options name, and what the trainer takes of them.
#pragma once

#include <memory>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/models/models.h"
#include "lockstep/train/trainer.h"
#include "recipe/train_options.h"
#include "train/data_record.h"
#include "train/model_size.h"

namespace lockstep {

struct TrainData {
  std::shared_ptr<const Dataset> train, test;
};

// Reads the data, or makes it (shapes, synthetic). Throws UsageError naming the flag or the file.
TrainData make_data(const TrainOptions& options);

// A fresh model from the options' seed. Throws UsageError when it can't take such data. `world`: where the
// strategy has parameters in shards, each of these workers keeps only its part of a unit, from when that is
// made (parallel/construction.h); none: the model is whole. Collective there.
std::shared_ptr<Model> make_model(const TrainOptions& options, const Dataset& data, const Group& world = {});

// How large the options' model is: made to be counted, for its form is said in one place.
ModelSize planned_size(TrainOptions options);

// Throws UsageError where libtorch can't compute in that precision on that device (cpu, cuda, cuda:N).
void check_kernels(const std::string& precision, const std::string& device);

// Throws UsageError where no forward of the options' model fits: a GPT on the processor keeps the scores of
// every pair of an example's tokens. To be asked before the data is made.
void check_attention(const TrainOptions& options);

// The options with the data where it was when `before` was written, if it is still there: the run may have
// been begun in another folder. Throws UsageError when it is in neither place.
TrainOptions locate_data(TrainOptions options, const DataRecord& before);
// Where the options' data lies, absolute; empty: it is made, not read.
std::string data_path(const TrainOptions& options);

// What the trainer takes: the task, and the options without what only names a model or data. The loss is the
// mean cross entropy over samples (over tokens for a text), of smoothed labels while the model is in
// training.
Task make_task(const std::shared_ptr<Model>& model, const TrainData& data, double label_smoothing = 0);
// What the run's strategy is made with; a part of it.
StrategyOptions strategy_options(const TrainOptions& options);
TrainerOptions trainer_options(const TrainOptions& options);
// --lr, or --base-lr scaled to the samples of a step of this run, whose lanes are settled.
double learning_rate(const TrainOptions& options);

}  // namespace lockstep
