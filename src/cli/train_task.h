// What is learnt from what: the data, the model and the loss of a run.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "cli/train_options.h"
#include "lockstep/data/dataset.h"
#include "lockstep/models/models.h"

namespace lockstep::cli {

struct TrainData {
  std::shared_ptr<const Dataset> train, test;
};

// Reads the data, or makes it (shapes, synthetic). Throws UsageError naming the flag or the file.
TrainData make_data(const TrainOptions& options);

// A fresh model from the options' seed. Throws UsageError when it can't take such data.
std::shared_ptr<Model> make_model(const TrainOptions& options, const Dataset& data);

// Mean cross-entropy over samples (over tokens for a text).
torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& target);
// How many of the targets are the likeliest class, and how many there are.
std::pair<std::int64_t, std::int64_t> count_correct(const torch::Tensor& logits, const torch::Tensor& target);

}  // namespace lockstep::cli
