// Training on a GPU by one worker. Several are processes (tools/gpu-check): libtorch runs all backwards of a
// process on one thread a GPU, where ranks that are threads would wait for each other for ever.
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>

#include "cuda/gpu_here.h"
#include "lockstep/checkpoint/hash.h"
#include "lockstep/comm/init.h"
#include "lockstep/models/cross_entropy.h"
#include "lockstep/models/models.h"
#include "lockstep/optim/grad_scaler.h"
#include "lockstep/parallel/construction.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/strategies.h"
#include "lockstep/parallel/units.h"
#include "lockstep/train/captured_loss.h"
#include "lockstep/train/trainer.h"
#include "train/device.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

class TrainingOnGpu : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    set_arithmetic(gpu(), {.deterministic = true});
    std::string name = (fs::temp_directory_path() / "lockstep-gpu-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }
  fs::path folder_;
};

Group one_worker() { return thread_groups(1, {.device = Device::Kind::cuda})[0]; }

// With batch norm, and dropout, whose numbers come from the lane.
struct GpuNet : torch::nn::Module {
  GpuNet() {
    torch::manual_seed(1);
    first = register_module("first", torch::nn::Linear(6, 32));
    norm = register_module("norm", torch::nn::BatchNorm1d(32));
    second = register_module("second", torch::nn::Linear(32, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor hidden = torch::relu(norm(first(x)));
    return second(torch::dropout(hidden, 0.25, is_training()));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

torch::Tensor inputs(int lane, int step) {
  return torch::sin(torch::arange(48, torch::kFloat32) * 0.3 + lane + 10 * step).view({8, 6});
}

// Eight lanes, five steps.
std::string train_lanes(const Group& g, torch::Device device, const std::string& name) {
  auto net = std::make_shared<GpuNet>();
  move_model(*net, device, false);
  const auto strategy = make_strategy(name, net, g, {});
  AdamW optimizer(*strategy, {.lr = 0.01});
  const LaneRange mine = lanes_of(g.rank(), g.size(), 8);
  for (int step = 0; step < 5; ++step) {
    for (int lane = mine.first; lane < mine.first + mine.count; ++lane) {
      const auto scope = strategy->lane({.seed = 7,
                                         .step = step,
                                         .index = lane,
                                         .weight = 1,
                                         .total_weight = 8,
                                         .first = lane == mine.first,
                                         .last = lane == mine.first + mine.count - 1});
      net->forward(inputs(lane, step).to(device)).pow(2).mean().backward();
    }
    optimizer.step();
  }
  wait_for_device(device);
  return params_sha256(*net);
}

TEST_F(TrainingOnGpu, LanesHaveTheSameBitsUnderEveryStrategyAndAgain) {
  const std::string expected = train_lanes(one_worker(), gpu(), "ddp");
  for (const char* const name : {"ddp", "zero1", "zero2"})
    EXPECT_EQ(train_lanes(one_worker(), gpu(), name), expected) << name;
}

TEST_F(TrainingOnGpu, DropoutsNumbersComeFromTheLaneAndTheProgramsComeBack) {
  {
    auto net = std::make_shared<GpuNet>();
    move_model(*net, gpu(), false);
    DataParallel ddp(net, one_worker());
    const auto draw = [&](int lane) {
      const auto scope = ddp.lane({.seed = 3, .index = lane, .weight = 1, .total_weight = 1});
      return torch::rand({4}, torch::TensorOptions().device(gpu())).cpu();
    };
    torch::manual_seed(5);
    const torch::Tensor expected = torch::rand({4}, torch::TensorOptions().device(gpu())).cpu();
    torch::manual_seed(5);
    const torch::Tensor a = draw(0), b = draw(1), again = draw(0);
    EXPECT_TRUE(torch::equal(a, again));
    EXPECT_FALSE(torch::equal(a, b));
    EXPECT_TRUE(torch::equal(torch::rand({4}, torch::TensorOptions().device(gpu())).cpu(), expected));
  }
}

// One rank's gradients stay where libtorch has put them; nothing else is different.
TEST_F(TrainingOnGpu, WrappingASingleWorkerChangesNoBit) {
  const auto train = [&](bool wrapped) {
    auto net = std::make_shared<GpuNet>();
    move_model(*net, gpu(), false);
    const Group g = one_worker();
    std::optional<DataParallel> ddp;
    std::unique_ptr<Optimizer> optimizer;
    std::vector<NamedTensor> list;
    for (const auto& entry : net->named_parameters()) list.push_back({entry.key(), entry.value()});
    if (wrapped)
      optimizer = std::make_unique<AdamW>(ddp.emplace(net, g), AdamWOptions{.lr = 0.01});
    else
      optimizer = std::make_unique<AdamW>(list, AdamWOptions{.lr = 0.01});
    torch::manual_seed(2);
    for (int step = 0; step < 5; ++step) {
      optimizer->zero_grad();
      net->forward(inputs(0, step).to(gpu())).pow(2).mean().backward();
      optimizer->step();
    }
    return params_sha256(*net);
  };
  EXPECT_EQ(train(true), train(false));
}

// y = 2 x + 1, by the trainer.
struct Line : Dataset {
  std::int64_t size() const override { return 64; }
  Batch get(std::span<const std::int64_t> indices, RandomStream*) const override {
    Batch batch{.data = torch::empty({std::ssize(indices), 6}), .target = {}};
    for (std::int64_t i = 0; i < std::ssize(indices); ++i)
      batch.data[i] = torch::sin(torch::arange(6, torch::kFloat32) +
                                 static_cast<double>(indices[static_cast<std::size_t>(i)]));
    batch.target = batch.data.narrow(1, 0, 3) * 2 + 1;
    return batch;
  }
};

TEST_F(TrainingOnGpu, TheTrainerLearnsSavesAndGoesOn) {
  const auto task = [] {
    return Task{.train = std::make_shared<Line>(),
                .test = std::make_shared<Line>(),
                .loss = [](const torch::Tensor& y, const Batch& b) { return (y - b.target).pow(2).mean(); }};
  };
  const auto options = [&](const std::string& out, const std::string& precision, std::int64_t steps) {
    TrainerOptions o{.lanes = 4,
                     .lane_batch = 4,
                     .steps = steps,
                     .out = (folder_ / out).string(),
                     .if_there = IfThere::resume,
                     .quiet = true};
    o.schedule.lr = 0.01;
    o.precision = precision;
    o.device = "cuda";
    o.deterministic = true;
    o.checkpoint_every = 4;
    return o;
  };
  for (const char* const precision : {"fp32", "bf16", "fp16", "bf16-autocast"}) {
    const Group g = one_worker();
    std::vector<std::string> hashes;
    for (const char* const again : {"a", "b"}) {
      TrainerResult result;
      for (const std::int64_t steps : {6, 12}) {  // stopped after six, and gone on with
        if (again[0] == 'b' && steps == 6) continue;
        Trainer trainer(std::make_shared<GpuNet>(), task(),
                        options(std::string(precision) + again, precision, steps), g);
        result = trainer.run();
      }
      EXPECT_EQ(result.steps, 12);
      ASSERT_TRUE(result.validation_loss.has_value());
      EXPECT_LT(*result.validation_loss, 2.5) << precision;
      hashes.push_back(result.params_sha256);
    }
    EXPECT_EQ(hashes[0], hashes[1]) << precision << ": in two parts and in one";
  }
}

// One rank, which gathers what it has from itself: the parameters' memory comes and goes all the same.
// Several ranks are processes (tools/gpu-check).
TEST_F(TrainingOnGpu, UnitsThatComeAndGoChangeNoBit) {
  const auto trained = [&](const std::string& model, const std::string& strategy, bool again) {
    torch::manual_seed(3);
    const bool images = model == "resnet";
    const std::shared_ptr<Model> net =
        images ? make_resnet({.channels = 16, .cifar_stem = true})
               : make_gpt({.blocks = 3, .width = 64, .heads = 4, .context = 32, .vocabulary = 256});
    if (again) recompute_units(*net);
    move_model(*net, gpu(), images);
    const torch::Tensor x = images ? torch::rand({8, 3, 32, 32}) : torch::randint(0, 256, {4, 32});
    StrategyOptions options;
    if (strategy == "zero3") options.gathered_mb = 4;
    const auto parallel = make_strategy(strategy, net, one_worker(), options);
    AdamW optimizer(*parallel, {.lr = 0.01});
    for (int step = 0; step < 4; ++step) {
      net->forward(x.to(gpu())).pow(2).mean().backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(has_memory(net->parameters()[0]), strategy != "zero3");
    const auto whole = parallel->whole();
    return params_sha256(*net);
  };
  for (const char* const model : {"gpt", "resnet"})
    for (const bool again : {false, true})
      EXPECT_EQ(trained(model, "zero3", again), trained(model, "ddp", again)) << model << again;
}

// One whose last step of an epoch is short, so that it is computed without the graph.
TEST_F(TrainingOnGpu, ARecordedStepHasTheSameBits) {
  struct Plain : GpuNet {
    torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(norm(first(x)))); }
  };
  const auto trained = [&](const std::string& out, const std::string& precision, bool recorded) {
    TrainerOptions o{.lanes = 1,
                     .lane_batch = 24,
                     .last_step = LastStep::short_,
                     .epochs = 3,
                     .cuda_graph = recorded,
                     .out = (folder_ / out).string(),
                     .quiet = true};
    o.schedule.lr = 0.01;
    o.precision = precision;
    o.device = "cuda";
    o.deterministic = true;
    const Task task{
        .train = std::make_shared<Line>(),
        .test = std::make_shared<Line>(),
        .loss = [](const torch::Tensor& y, const Batch& b) { return (y - b.target).pow(2).mean(); }};
    return Trainer(std::make_shared<Plain>(), task, o, one_worker()).run().params_sha256;
  };
  for (const std::string precision : {"fp32", "bf16", "fp16"})
    EXPECT_EQ(trained(precision + "-graph", precision, true), trained(precision, precision, false))
        << precision;
}

TEST_F(TrainingOnGpu, RecordedModelsHaveTheSameBits) {
  const RecordingStream stream(gpu());
  const auto trained = [&](bool images, bool recorded) {
    torch::manual_seed(3);
    const std::shared_ptr<Model> net = images
                                           ? make_resnet({.channels = 16, .cifar_stem = true})
                                           : make_gpt({.blocks = 2, .width = 64, .heads = 4, .context = 32});
    move_model(*net, gpu(), images);
    const torch::Tensor x = images ? torch::rand({8, 3, 32, 32}) : torch::randint(0, 256, {4, 32});
    const torch::Tensor y = images ? torch::randint(0, 10, {8}) : torch::randint(0, 256, {4, 32});
    const auto function = [&](const std::vector<torch::Tensor>& in) {
      const torch::Tensor out = net->forward(in[0]);
      return cross_entropy(out.reshape({-1, out.size(-1)}), in[1].reshape({-1}));
    };
    DataParallel ddp(net, one_worker());
    AdamW optimizer(ddp, {.lr = 0.01});
    CapturedLoss loss(net, function);
    for (int step = 0; step < 4; ++step) {
      const std::vector<torch::Tensor> batch{x.to(gpu()), y.to(gpu())};
      (recorded ? loss(batch) : function(batch)).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(loss.replays(), recorded ? 4 : 0);
    wait_for_device(gpu());
    return params_sha256(*net);
  };
  for (const bool images : {false, true})
    EXPECT_EQ(trained(images, true), trained(images, false)) << (images ? "ResNet" : "GPT");
}

TEST_F(TrainingOnGpu, WhatIsOnTheDefaultStreamCantBeRecorded) {
  auto net = std::make_shared<GpuNet>();
  move_model(*net, gpu(), false);
  CapturedLoss loss(net, [&](const std::vector<torch::Tensor>& in) { return net->first(in[0]).sum(); });
  try {
    (void)loss({inputs(0, 0).to(gpu())});
    ADD_FAILURE() << "it was recorded";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("RecordingStream"), std::string::npos) << error.what();
  }
}

TEST_F(TrainingOnGpu, WhatGpusHaveNotIsRefusedAtTheStart) {
  EXPECT_THROW((void)find_device("cuda:99", 0), UsageError);
}

}  // namespace
}  // namespace lockstep::testing
