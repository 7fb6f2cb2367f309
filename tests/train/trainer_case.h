// A task small enough to be trained in a moment, a straight line, and what tests of the trainer do with it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "comm/thread_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/train/trainer.h"

namespace lockstep::testing {

namespace fs = std::filesystem;

// y = 2 x + 1.
class Line : public Dataset {
 public:
  explicit Line(double slope = 2) : slope_(slope) {}
  std::int64_t size() const override { return 96; }
  Batch get(std::span<const std::int64_t> indices, RandomStream* random) const override {
    if (asked) asked(indices);
    Batch batch{.data = torch::empty({std::ssize(indices), 1}), .target = {}};
    auto x = batch.data.accessor<float, 2>();
    for (std::int64_t i = 0; i < std::ssize(indices); ++i)
      x[i][0] = static_cast<float>(indices[static_cast<std::size_t>(i)] % 16) / 16;
    batch.target = slope_ * batch.data + 1;
    if (random != nullptr) batch.target += random->uniform(-0.01, 0.01);
    return batch;
  }
  std::string fingerprint() const override { return std::string(64, slope_ == 2 ? 'a' : 'b'); }
  std::function<void(std::span<const std::int64_t>)> asked;

 private:
  double slope_;
};

inline torch::Tensor squared(const torch::Tensor& y, const Batch& batch) {
  return (y - batch.target).pow(2).mean();
}
inline MetricSum distance(const torch::Tensor& y, const Batch& batch) {
  return {(y - batch.target).abs().sum().item<double>(), static_cast<double>(y.numel())};
}

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() {
    std::string name = (fs::temp_directory_path() / "lockstep-trainer-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~TrainerTest() override { fs::remove_all(folder_); }

  TrainerOptions options(const std::string& name) const {
    return {.model_name = "line",
            .lanes = 4,
            .lane_batch = 4,
            .seed = 3,
            .schedule = {.lr = 0.05},
            .epochs = 3,
            .out = (folder_ / name).string(),
            .quiet = true};
  }
  static Task task(std::shared_ptr<const Dataset> train = std::make_shared<Line>()) {
    return {.train = std::move(train),
            .test = std::make_shared<Line>(),
            .loss = squared,
            .metrics = {{"distance", distance}}};
  }
  // What rank 0 gets; all get the same.
  static TrainerResult train(int workers, const Task& what, const TrainerOptions& how) {
    TrainerResult first;
    std::vector<std::string> hashes(static_cast<std::size_t>(workers));
    on_threads(thread_groups(workers), [&](const Group& group) {
      torch::nn::Linear model(1, 1);  // from the one generator of all threads
      torch::nn::init::constant_(model->weight, 0.5);
      torch::nn::init::constant_(model->bias, 0);
      const TrainerResult result = Trainer(model, what, how, group).run();
      hashes[static_cast<std::size_t>(group.rank())] = result.params_sha256;
      if (group.rank() == 0) first = result;
    });
    for (const std::string& hash : hashes) EXPECT_EQ(hash, first.params_sha256);
    return first;
  }
  std::string text(const std::string& file) const {
    std::ifstream in(folder_ / file);
    std::stringstream read;
    read << in.rdbuf();
    return read.str();
  }
  static std::string refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  }

  fs::path folder_;
};

}  // namespace lockstep::testing
