// The right answer: what DataParallel, its loader and its optimizers give is what a plain loop of libtorch
// over the same samples gives. Threads as ranks; nothing draws from torch's generator, which they would
// share.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/thread_ranks.h"
#include "lockstep/comm/init.h"
#include "lockstep/data/datasets.h"
#include "lockstep/data/loader.h"
#include "lockstep/models/models.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

using lockstep::testing::on_threads;
using Losses = std::vector<double>;

constexpr std::uint64_t kSeed = 5;
constexpr std::int64_t kSteps = 50;

// What is trained. No size is a multiple of a step's samples, so that every epoch ends in a smaller step.
struct Task {
  std::string model;
  std::shared_ptr<const Dataset> data;
  std::function<std::shared_ptr<Model>()> make;
  double sgd_lr;
  double adamw_lr;
};

Task mlp_task() {
  return {.model = "mlp",
          .data = std::make_shared<SyntheticDataset>(SyntheticOptions{.size = 300, .shape = {64}}),
          .make = [] { return make_mlp({.inputs = 64, .width = 48, .layers = 3}); },
          .sgd_lr = 0.1,
          .adamw_lr = 2e-3};
}

Task gpt_task() {
  constexpr std::int64_t kContext = 16, kVocabulary = 40;
  return {.model = "gpt",
          .data = std::make_shared<SyntheticDataset>(SyntheticOptions{
              .kind = SyntheticKind::tokens, .size = 75, .shape = {kContext}, .classes = kVocabulary}),
          .make =
              [] {
                return make_gpt(
                    {.blocks = 1, .width = 32, .heads = 4, .context = kContext, .vocabulary = kVocabulary});
              },
          .sgd_lr = 0.1,
          .adamw_lr = 2e-3};
}

Task resnet_task() {
  return {.model = "resnet18",
          .data = std::make_shared<SyntheticDataset>(SyntheticOptions{.size = 22, .shape = {3, 32, 32}}),
          .make = [] { return make_resnet({.depth = 18}); },
          .sgd_lr = 0.01,
          .adamw_lr = 5e-4};
}

std::shared_ptr<Model> make_seeded(const Task& task, std::uint64_t seed) {
  at::manual_seed(seed);
  auto model = task.make();
  model->train();
  return model;
}

torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& target) {
  return torch::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), target.reshape({-1}));
}

enum class Rule : unsigned char { sgd, adamw };
enum class Maker : unsigned char { libtorch, lockstep };

constexpr double kMomentum = 0.9;
constexpr double kWeightDecay = 1e-3;

const char* text_of(Rule rule) { return rule == Rule::sgd ? "SGD" : "AdamW"; }
const char* text_of(Maker maker) { return maker == Maker::libtorch ? "torch::optim" : "lockstep"; }
double lr_of(const Task& task, Rule rule) { return rule == Rule::sgd ? task.sgd_lr : task.adamw_lr; }

std::unique_ptr<torch::optim::Optimizer> make_theirs(Rule rule, double lr,
                                                     std::vector<torch::Tensor> parameters) {
  if (rule == Rule::sgd)
    return std::make_unique<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(lr).momentum(kMomentum).weight_decay(kWeightDecay));
  return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                               torch::optim::AdamWOptions(lr).weight_decay(kWeightDecay));
}

std::unique_ptr<Optimizer> make_ours(Rule rule, double lr, DataParallel& ddp) {
  if (rule == Rule::sgd)
    return std::make_unique<SGD>(ddp,
                                 SGDOptions{.lr = lr, .momentum = kMomentum, .weight_decay = kWeightDecay});
  return std::make_unique<AdamW>(ddp, AdamWOptions{.lr = lr, .weight_decay = kWeightDecay});
}

struct Result {
  Losses losses;
  std::shared_ptr<Model> model;
};

struct Shape {
  int lanes;
  int lane_batch;
  std::int64_t steps = kSteps;
};

// The plain loop: one process, one model, one batch a step. It knows of lanes only whose samples come after
// whose.
Result train_plainly(const Task& task, Shape shape, Rule rule, double lr) {
  Result result{.losses = {}, .model = make_seeded(task, kSeed)};
  const auto optimizer = make_theirs(rule, lr, result.model->parameters());
  const Sampler sampler(
      task.data->size(),
      {.lanes = shape.lanes, .lane_batch = shape.lane_batch, .seed = kSeed, .last_step = LastStep::short_});
  for (std::int64_t step = 0; step < shape.steps; ++step) {
    std::vector<std::int64_t> indices;
    for (int lane = 0; lane < shape.lanes; ++lane)
      for (const std::int64_t index :
           sampler.lane(step / sampler.steps_per_epoch(), step % sampler.steps_per_epoch(), lane))
        indices.push_back(index);
    const Batch batch = task.data->get(indices, nullptr);
    optimizer->zero_grad();
    const torch::Tensor loss = loss_of(result.model->forward(batch.data), batch.target);
    loss.backward();
    optimizer->step();
    result.losses.push_back(loss.item<double>());
  }
  return result;
}

// The same with DataParallel. Only rank 0 begins with the right weights: the others get them from it. Gives
// rank 0's model.
Result train_in_lockstep(const Task& task, Shape shape, Rule rule, double lr, Maker maker, int workers) {
  const auto steps = static_cast<std::size_t>(shape.steps);
  const auto lanes = static_cast<std::size_t>(shape.lanes);
  struct Part {
    double weight = 0;
    double loss = 0;
  };
  std::vector<std::vector<Part>> parts(steps, std::vector<Part>(lanes));  // each written by one rank
  std::vector<std::shared_ptr<Model>> models;
  for (int r = 0; r < workers; ++r)
    models.push_back(make_seeded(task, kSeed + static_cast<std::uint64_t>(r)));

  on_threads(thread_groups(workers), [&](const Group& group) {
    const auto& model = models[static_cast<std::size_t>(group.rank())];
    DataParallel ddp(model, group, {.bucket_cap_mb = 0.02, .first_bucket_mb = 0.005});
    std::unique_ptr<torch::optim::Optimizer> theirs;
    std::unique_ptr<Optimizer> ours;
    if (maker == Maker::libtorch)
      theirs = make_theirs(rule, lr, model->parameters());
    else
      ours = make_ours(rule, lr, ddp);
    for (Step& step : loader(task.data, group,
                             {.lanes = shape.lanes,
                             .lane_batch = shape.lane_batch,
                             .seed = kSeed,
                             .augment = false,
                             .last_step = LastStep::short_,
                             .epochs = 0,
                             .steps = shape.steps})) {
      for (Lane& lane : step) {
        const auto scope = ddp.lane(lane);
        const torch::Tensor loss = loss_of(model->forward(lane.data), lane.target);
        loss.backward();
        parts[static_cast<std::size_t>(step.number)][static_cast<std::size_t>(lane.index)] = {
            lane.weight, loss.item<double>()};
      }
      if (ours) {
        ours->step();
      } else {
        ddp.synchronize();
        theirs->step();
        ddp.end_step();
      }
    }
    ddp.check_replicas();
  });

  Result result{.losses = {}, .model = models[0]};
  for (const auto& step : parts) {
    double loss = 0, weight = 0;
    for (const Part& part : step) {
      loss += part.weight * part.loss;
      weight += part.weight;
    }
    result.losses.push_back(loss / weight);
  }
  return result;
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  const auto x = a.detach().contiguous(), y = b.detach().contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         (x.numel() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0);
}

void expect_same_bits(const Model& a, const Model& b) {
  const auto parameters = b.named_parameters(), buffers = b.named_buffers();
  for (const auto& p : a.named_parameters()) EXPECT_TRUE(same_bits(*p, parameters[p.key()])) << p.key();
  for (const auto& p : a.named_buffers()) EXPECT_TRUE(same_bits(*p, buffers[p.key()])) << p.key();
}

// The largest relative difference of a step's losses.
double difference(const Losses& a, const Losses& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    EXPECT_TRUE(std::isfinite(a[i]) && std::isfinite(b[i])) << "step " << i;
    most = std::max(most, std::abs(a[i] - b[i]) / std::abs(b[i]));
  }
  return most;
}

class Reference : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};
using ReferenceSlow = Reference;

// One lane, one worker, a torch::optim optimizer: not a bit differs, in losses, weights and batch norm's
// buffers.
void compare_bits(const Task& task, Shape shape) {
  for (const Rule rule : {Rule::sgd, Rule::adamw}) {
    SCOPED_TRACE(task.model + ", " + text_of(rule));
    const double lr = lr_of(task, rule);
    const Result plain = train_plainly(task, shape, rule, lr);
    const Result ours = train_in_lockstep(task, shape, rule, lr, Maker::libtorch, 1);
    EXPECT_EQ(ours.losses, plain.losses);
    expect_same_bits(*ours.model, *plain.model);
    EXPECT_NE(plain.losses.front(), plain.losses.back());
  }
}

TEST_F(Reference, OneLaneIsThePlainLoopBitForBitMlp) {
  compare_bits(mlp_task(), {.lanes = 1, .lane_batch = 8});
}
TEST_F(Reference, OneLaneIsThePlainLoopBitForBitGpt) {
  compare_bits(gpt_task(), {.lanes = 1, .lane_batch = 8});
}
TEST_F(Reference, OneLaneIsThePlainLoopBitForBitResNet) {
  compare_bits(resnet_task(), {.lanes = 1, .lane_batch = 4, .steps = 8});
}
TEST_F(ReferenceSlow, OneLaneIsThePlainLoopBitForBitResNet) {
  compare_bits(resnet_task(), {.lanes = 1, .lane_batch = 4});
}

// Eight lanes: the sums are the same but their order is not, so the last bits differ.
void compare_lanes(const Task& task, int lane_batch) {
  const Shape shape{.lanes = 8, .lane_batch = lane_batch};
  for (const Rule rule : {Rule::sgd, Rule::adamw}) {
    const double lr = lr_of(task, rule);
    const Losses plain = train_plainly(task, shape, rule, lr).losses;
    for (const Maker maker : {Maker::libtorch, Maker::lockstep}) {
      for (const int workers : {1, 2, 3}) {
        const Losses ours = train_in_lockstep(task, shape, rule, lr, maker, workers).losses;
        const double most = difference(ours, plain);
        EXPECT_LE(most, 1e-5) << task.model << ", " << text_of(maker) << " " << text_of(rule) << ", "
                              << workers << " workers";
        std::printf("%s, %s %s, %d workers: largest relative difference %.1e, loss %.3f to %.3f\n",
                    task.model.c_str(), text_of(maker), text_of(rule), workers, most, plain.front(),
                    plain.back());
      }
    }
  }
}

TEST_F(Reference, LanesAreThePlainLoopOverTheWholeBatchMlp) { compare_lanes(mlp_task(), 4); }
TEST_F(Reference, LanesAreThePlainLoopOverTheWholeBatchGpt) { compare_lanes(gpt_task(), 2); }

// What the tolerance is worth: a learning rate wrong by a thousandth does not pass. (The losses follow a
// smaller error in proportion; one that is large enough to flip the sign of a ReLU's input shows by far
// more.)
TEST_F(Reference, TheToleranceSeesASmallMistake) {
  const Shape shape{.lanes = 8, .lane_batch = 4};
  for (const Task& task : {mlp_task(), gpt_task()}) {
    for (const Rule rule : {Rule::sgd, Rule::adamw}) {
      const double lr = lr_of(task, rule);
      const Losses right = train_plainly(task, shape, rule, lr).losses;
      const Losses wrong = train_plainly(task, shape, rule, lr * 1.001).losses;
      EXPECT_GT(difference(wrong, right), 3e-5) << task.model << ", " << text_of(rule);
    }
  }
}

}  // namespace
}  // namespace lockstep
