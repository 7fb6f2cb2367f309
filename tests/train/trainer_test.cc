// The trainer with a model, data and a loss of its own; ranks are threads.
#include "lockstep/train/trainer.h"

#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <nlohmann/json.hpp>
#include <set>

#include "comm/wire_ranks.h"
#include "lockstep/models/models.h"
#include "train/trainer_case.h"

namespace lockstep::testing {
namespace {

using Json = nlohmann::json;

TEST_F(TrainerTest, LearnsAndLeavesAFolderWithAPage) {
  TrainerOptions how = options("run");
  how.epochs = 40;
  const TrainerResult result = train(2, task(), how);
  EXPECT_EQ(result.steps, 40 * 6);
  EXPECT_EQ(result.stopped_by, 0);
  EXPECT_EQ(result.exit_status(), 0);
  ASSERT_TRUE(result.validation_loss && result.final_loss);
  EXPECT_LT(*result.validation_loss, 0.01);
  EXPECT_LT(result.metrics.at("distance"), 0.1);
  const Json summary = Json::parse(text("run/summary.json"));
  EXPECT_EQ(summary.at("params_sha256"), result.params_sha256);
  EXPECT_EQ(summary.at("model"), "line");
  EXPECT_DOUBLE_EQ(summary.at("metrics").at("distance").get<double>(), result.metrics.at("distance"));
  EXPECT_TRUE(text("run/evaluations.csv").starts_with("step,epoch,validation_loss,accuracy,distance\n"));
  const std::string page = text("run/index.html");
  EXPECT_NE(page.find("aria-label=\"distance\""), std::string::npos);
  EXPECT_EQ(page.find("Accuracy on the test split"), std::string::npos);
  for (const char* file : {"config.json", "steps.csv", "epochs.csv", "buckets.csv", "trace.json"})
    EXPECT_FALSE(text(std::string("run/") + file).empty()) << file;
}

TEST_F(TrainerTest, TheNumberOfWorkersMakesNoDifference) {
  const TrainerResult one = train(1, task(), options("one"));
  for (const int workers : {2, 3, 4}) {
    const TrainerResult result = train(workers, task(), options("of" + std::to_string(workers)));
    EXPECT_EQ(result.params_sha256, one.params_sha256) << workers;
    EXPECT_EQ(*result.validation_loss, *one.validation_loss) << workers;
    EXPECT_EQ(result.metrics, one.metrics) << workers;
  }
}

// Data so large that one weight's gradient overflows, while the loss and the other's stay finite: with zero1
// one worker sees it, and all skip.
class Steep : public Line {
 public:
  Batch get(std::span<const std::int64_t> indices, RandomStream* random) const override {
    Batch batch = Line::get(indices, random);
    if (std::ranges::find(indices, 7) != indices.end()) batch.data.fill_(1.2e38);
    return batch;
  }
};

Task steep_task() {
  Task steep{.train = std::make_shared<Steep>(), .test = std::make_shared<Line>(), .loss = {}};
  steep.loss = [](const torch::Tensor& y, const Batch& batch) {
    return batch.data.max().item<float>() > 1e30f ? y.sum() : squared(y, batch);
  };
  return steep;
}

TEST_F(TrainerTest, GradientsThatAreNotFiniteAreSkippedUnderAnyStrategy) {
  std::set<std::string> hashes;
  for (const std::string strategy : {"ddp", "zero1"})
    for (const int workers : {1, 2}) {
      const std::string name = strategy + std::to_string(workers);
      TrainerOptions how = options(name);
      how.strategy = strategy;
      how.on_nan = "skip";
      how.optimizer = "sgd";
      hashes.insert(train(workers, steep_task(), how).params_sha256);
      EXPECT_EQ(Json::parse(text(name + "/summary.json")).at("steps_not_finite"), 3) << name;
    }
  EXPECT_EQ(hashes.size(), 1u);
}

// A loss of zero with an infinite gradient.
torch::Tensor overflowing(const torch::Tensor& y) { return (y - y.detach()).sum() * 3e38f * 3e38f; }

// Under a scaler that is an overflow: the scale halves, and a run in parts keeps it.
TEST_F(TrainerTest, OverflowIsSkippedAndCountedAndSurvivesAResume) {
  Task steep = steep_task();
  steep.loss = [](const torch::Tensor& y, const Batch& batch) {
    return batch.data.max().item<float>() > 1e30f ? overflowing(y) : squared(y, batch);
  };
  std::set<std::string> hashes;
  for (const std::string strategy : {"ddp", "zero1"})
    for (const int workers : {1, 2, 3}) {
      const std::string name = strategy + std::to_string(workers);
      TrainerOptions how = options(name);
      how.strategy = strategy;
      how.loss_scaling = "on";
      how.scaler.growth_interval = 8;
      how.epochs = 1;
      train(workers, steep, how);
      how.epochs = 3;
      how.if_there = IfThere::resume;
      hashes.insert(train(workers, steep, how).params_sha256);
      const Json summary = Json::parse(text(name + "/summary.json"));
      EXPECT_EQ(summary.at("steps_not_finite"), 0) << name;
      EXPECT_EQ(summary.at("steps_skipped"), 3) << name;
      EXPECT_TRUE(text(name + "/steps.csv").find("data_wait_ms,loss_scale,skipped\n") != std::string::npos);
      EXPECT_NE(text(name + "/index.html").find("steps skipped"), std::string::npos);
    }
  TrainerOptions whole = options("whole");
  whole.loss_scaling = "on";
  whole.scaler.growth_interval = 8;
  hashes.insert(train(2, steep, whole).params_sha256);
  EXPECT_EQ(hashes.size(), 1u);
  EXPECT_EQ(Json::parse(text("whole/summary.json")).at("loss_scale"),
            Json::parse(text("zero13/summary.json")).at("loss_scale"));
}

TEST_F(TrainerTest, ARunThatDoesNothingButSkipStops) {
  Task steep = steep_task();
  steep.loss = [](const torch::Tensor& y, const Batch&) { return overflowing(y); };
  TrainerOptions how = options("run");
  how.loss_scaling = "on";
  how.scaler.most_skipped = 4;
  on_threads(thread_groups(2), [&](const Group& group) {
    torch::nn::Linear model(1, 1);
    try {
      Trainer(model, steep, how, group).run();
      ADD_FAILURE() << "went on";
    } catch (const SystemError& error) {
      EXPECT_NE(std::string(error.what()).find("4 steps in a row"), std::string::npos) << error.what();
    }
  });
}

// Zero would say that a step sends nothing.
TEST_F(TrainerTest, WhereEveryStepWasSkippedNobodyKnowsWhatAStepSends) {
  const auto summary = [&](const std::string& name, const Loss& loss) {
    Task one = task();
    one.loss = loss;
    TrainerOptions how = options(name);
    how.loss_scaling = "on";
    how.epochs = 1;
    train(2, one, how);
    return Json::parse(text(name + "/summary.json"));
  };
  const Json skipped =
      summary("skipped", [](const torch::Tensor& y, const Batch&) { return overflowing(y); });
  const Json taken = summary("taken", squared);
  EXPECT_EQ(skipped.at("steps_skipped"), 6);
  EXPECT_TRUE(skipped.at("wire_bytes").is_null()) << skipped.at("wire_bytes");
  EXPECT_EQ(taken.at("steps_skipped"), 0);
  EXPECT_TRUE(taken.at("wire_bytes").is_number()) << taken.at("wire_bytes");
}

TEST_F(TrainerTest, Bf16KeepsMastersAndTakes16BytesAParameter) {
  Task wide = task();
  wide.loss = [](const torch::Tensor& y, const Batch& batch) {
    EXPECT_EQ(y.scalar_type(), torch::kFloat32);
    return squared(y, batch);
  };
  for (const std::string strategy : {"ddp", "zero1"}) {
    const auto run = [&](const std::string& name, std::int64_t epochs, IfThere if_there) {
      TrainerOptions how = options(name);
      how.strategy = strategy;
      how.precision = "bf16";
      how.epochs = epochs;
      how.if_there = if_there;
      how.lanes = 2;
      std::string hash;
      on_threads(thread_groups(2), [&](const Group& group) {
        const auto model = make_mlp({.inputs = 1, .width = 256, .layers = 2, .classes = 1});
        for (const torch::Tensor& p : model->parameters())
          p.detach().copy_(torch::linspace(-0.1, 0.1, p.numel()).view(p.sizes()));
        const TrainerResult result = Trainer(model, wide, how, group).run();
        EXPECT_EQ(model->parameters()[0].scalar_type(), torch::kBFloat16);
        if (group.rank() == 0) hash = result.params_sha256;
      });
      return hash;
    };
    const std::string whole = run(strategy + "-whole", 3, IfThere::refuse);
    run(strategy + "-parts", 1, IfThere::refuse);
    EXPECT_EQ(run(strategy + "-parts", 3, IfThere::resume), whole) << strategy;
    const Json summary = Json::parse(text(strategy + "-whole/summary.json"));
    const double expected = strategy == "ddp" ? 16 : 10;  // 2 + 2 + 12, of which zero1 has a half
    EXPECT_DOUBLE_EQ(summary.at("predicted_state_bytes_a_parameter").get<double>(), expected);
    EXPECT_NEAR(summary.at("state_bytes_a_parameter").get<double>(), expected, 0.02 * expected);
    EXPECT_EQ(summary.at("state_bytes").size(), 2u);
  }
}

// Of parameters that are gathered among all workers, and in two sets.
TEST_F(TrainerTest, PredictsWhatSetsOfWorkersHold) {
  constexpr int kLayers = 24;
  for (const int sharers : {4, 2, 1}) {
    TrainerOptions how = options("sets" + std::to_string(sharers));
    how.strategy = "zero3";
    how.epochs = 1;
    how.parallel.shard_workers = sharers;
    on_threads(thread_groups(4), [&](const Group& group) {
      const auto model = make_mlp({.inputs = 1, .width = 256, .layers = kLayers, .classes = 1});
      for (const torch::Tensor& p : model->parameters())
        p.detach().copy_(torch::linspace(-0.1, 0.1, p.numel()).view(p.sizes()));
      Trainer(model, task(), how, group).run();
    });
    const Json memory = Json::parse(text("sets" + std::to_string(sharers) + "/summary.json")).at("memory");
    const auto bytes = [&](const char* of) { return memory.at(of).get<double>(); };
    EXPECT_NEAR(bytes("parameter_bytes") * sharers / (4 * (kLayers - 1) * (256 * 256 + 256)), 1, 0.02)
        << sharers;
    EXPECT_NEAR(bytes("predicted_bytes") / bytes("accounted_bytes"), 1, 0.1) << memory.dump();
  }
}

// Of one copy a machine, where the first has a single worker, which holds all of it.
TEST_F(TrainerTest, PredictsWhatAWorkerAloneOnItsMachineHolds) {
  TrainerOptions how = options("alone");
  how.strategy = "zero3";
  how.lanes = 3;
  how.epochs = 1;
  how.parallel.bucket_cap_mb = how.parallel.first_bucket_mb = 0.25;
  on_threads(node_groups({0, 1, 1}, net::Security::plaintext), [&](const Group& group) {
    const auto model = make_mlp({.inputs = 1, .width = 256, .layers = 24, .classes = 1});
    for (const torch::Tensor& p : model->parameters())
      p.detach().copy_(torch::linspace(-0.1, 0.1, p.numel()).view(p.sizes()));
    Trainer(model, task(), how, group).run();
  });
  const Json memory = Json::parse(text("alone/summary.json")).at("memory");
  const auto bytes = [&](const char* of) { return memory.at(of).get<double>(); };
  EXPECT_EQ(bytes("gathered_bytes"), 0);
  EXPECT_NEAR(bytes("predicted_bytes") / bytes("accounted_bytes"), 1, 0.1) << memory.dump();
}

// tree has no reduce-scatter: said before anything is written.
TEST_F(TrainerTest, AnAlgorithmThatTheStrategyCantUseIsRefused) {
  TrainerOptions how = options("run");
  how.parallel.algorithm = "tree";
  EXPECT_EQ(train(2, task(), how).exit_status(), 0);
  how.out = (folder_ / "none").string();
  how.strategy = "zero1";
  on_threads(thread_groups(2), [&](const Group& group) {
    torch::nn::Linear model(1, 1);
    const std::string said = refusal([&] { Trainer(model, task(), how, group).run(); });
    EXPECT_NE(said.find("algorithm (with strategy = zero1)"), std::string::npos) << said;
    EXPECT_NE(said.find("'tree'"), std::string::npos) << said;
    EXPECT_NE(said.find("reduce_scatter"), std::string::npos) << said;
  });
  EXPECT_FALSE(fs::exists(folder_ / "none"));
}

TEST_F(TrainerTest, ARunInPartsEndsWhereAWholeOneDoes) {
  const TrainerResult whole = train(2, task(), options("whole"));
  TrainerOptions part = options("parts");
  part.epochs = 1;
  train(2, task(), part);
  part.epochs = 3;
  part.if_there = IfThere::resume;
  part.lanes = 0;  // as many as it had
  const TrainerResult result = train(4, task(), part);
  EXPECT_EQ(result.steps, whole.steps);
  EXPECT_EQ(result.params_sha256, whole.params_sha256);
  EXPECT_EQ(text("parts/evaluations.csv"), text("whole/evaluations.csv"));
  // One that is through stays as it is.
  const std::string summary = text("parts/summary.json");
  EXPECT_EQ(train(1, task(), part).params_sha256, whole.params_sha256);
  EXPECT_EQ(text("parts/summary.json"), summary);
}

// Sends whole numbers and keeps the rest for the next step: without what it remembers a run goes another way.
struct Coarse {
  Group group;
  std::shared_ptr<Exchange::State> kept = std::make_shared<Exchange::State>();

  Exchange exchange() const {
    return {.name = "coarse",
            .run =
                [*this](const Bucket& bucket) {
                  for (const BucketTensor& tensor : bucket.tensors) round(bucket, tensor);
                  return all_reduce_exchange().run(bucket);
                },
            .state = [*this] { return gathered(); },
            .load =
                [*this](const Exchange::State& state) {
                  for (const auto& [name, rows] : state) (*kept)[name] = rows[group.rank()].clone();
                }};
  }
  void round(const Bucket& bucket, const BucketTensor& tensor) const {
    const torch::Tensor data = torch::from_blob(static_cast<float*>(bucket.data.data) + tensor.offset,
                                                {static_cast<std::int64_t>(tensor.count)});
    torch::Tensor& rest = kept->try_emplace(tensor.name, torch::zeros_like(data)).first->second;
    rest += data;
    data.copy_(rest.round());
    rest -= data;
  }
  // A row a rank.
  Exchange::State gathered() const {
    Exchange::State state;
    for (const auto& [name, own] : *kept) {
      torch::Tensor& rows = state[name] = torch::empty({group.size(), own.numel()});
      group.all_gather(ConstBuffer{own.data_ptr(), static_cast<std::size_t>(own.numel()), DType::f32},
                       Buffer{rows.data_ptr(), static_cast<std::size_t>(rows.numel()), DType::f32});
    }
    return state;
  }
};

TEST_F(TrainerTest, WhatAnExchangeRemembersIsInTheCheckpoint) {
  const auto run = [&](const std::string& name, std::int64_t epochs, bool takes = true) {
    TrainerResult first;
    on_threads(thread_groups(2), [&](const Group& group) {
      TrainerOptions how = options(name);
      how.epochs = epochs;
      how.optimizer = "sgd";
      how.schedule.lr = 0.001;
      how.if_there = IfThere::resume;
      how.parallel.exchange = [coarse = Coarse{group}, takes](Exchange::Leaves) {
        Exchange exchange = coarse.exchange();
        if (!takes) exchange.load = {};
        return exchange;
      };
      torch::nn::Linear model(1, 1);
      torch::nn::init::constant_(model->weight, 0.5);
      torch::nn::init::constant_(model->bias, 0);
      const TrainerResult result = Trainer(model, task(), how, group).run();
      if (group.rank() == 0) first = result;
    });
    return first.params_sha256;
  };
  const std::string whole = run("whole", 3);
  run("parts", 1);
  fs::copy(folder_ / "parts", folder_ / "forgetful", fs::copy_options::recursive);
  EXPECT_EQ(run("parts", 3), whole);
  EXPECT_NE(run("forgetful", 3, false), whole);  // so it matters
}

TEST_F(TrainerTest, ASignalStopsItWithACheckpoint) {
  const TrainerResult whole = train(2, task(), options("whole"));
  auto data = std::make_shared<Line>();
  std::atomic<int> asked = 0;
  data->asked = [&](auto) {
    if (++asked == 40) ::raise(SIGTERM);  // of 72 lanes: the loader is a few steps ahead
  };
  TrainerOptions how = options("stopped");
  const TrainerResult stopped = train(2, task(data), how);
  EXPECT_EQ(stopped.stopped_by, SIGTERM);
  EXPECT_EQ(stopped.exit_status(), 128 + SIGTERM);
  EXPECT_GT(stopped.steps, 0);
  EXPECT_LT(stopped.steps, whole.steps);
  how.if_there = IfThere::resume;
  EXPECT_EQ(train(1, task(), how).params_sha256, whole.params_sha256);
}

TEST_F(TrainerTest, WhatWouldMakeAnotherRunIsRefused) {
  TrainerOptions how = options("run");
  train(1, task(), how);
  EXPECT_NE(refusal([&] { train(1, task(), how); }).find("if_there"), std::string::npos);
  how.if_there = IfThere::resume;
  how.epochs = 4;
  how.lane_batch = 8;
  const std::string said = refusal([&] { train(2, task(), how); });
  EXPECT_NE(said.find("lane_batch = 8"), std::string::npos) << said;
  EXPECT_NE(said.find("has 4"), std::string::npos) << said;
  how.lane_batch = 4;
  how.parallel.order = Order::any;
  const std::string order = refusal([&] { train(1, task(), how); });
  EXPECT_NE(order.find("order = \"any\" would make another run"), std::string::npos) << order;
  how.parallel = {.exchange = [](Exchange::Leaves) {
    Exchange same = all_reduce_exchange();
    same.name = "coarse";
    return same;
  }};
  const std::string exchange = refusal([&] { train(1, task(), how); });
  EXPECT_NE(exchange.find("exchange = \"coarse\" would make another run"), std::string::npos) << exchange;
  EXPECT_NE(exchange.find("has \"own\""), std::string::npos) << exchange;
  how.parallel = {};
  const std::string data = refusal([&] { train(1, task(std::make_shared<Line>(3)), how); });
  EXPECT_NE(data.find("is not the data of"), std::string::npos) << data;
  how.if_there = IfThere::overwrite;
  EXPECT_EQ(train(1, task(), how).steps, 4 * 6);
}

// Whichever sums in canonical order may carry the next part of a run; one with an order of its own is the
// run's.
TEST_F(TrainerTest, AnAlgorithmWithAnOrderOfItsOwnIsTheRuns) {
  TrainerOptions how = options("run");
  how.if_there = IfThere::resume;
  how.epochs = 1;
  train(3, task(), how);
  how.epochs = 2;
  how.parallel.algorithm = "ring";
  const std::string ring = refusal([&] { train(3, task(), how); });
  EXPECT_NE(ring.find("parallel.algorithm = ring would make another run"), std::string::npos) << ring;
  EXPECT_NE(ring.find("in canonical order"), std::string::npos) << ring;
  how.parallel.algorithm = "tree";
  EXPECT_EQ(train(3, task(), how).steps, 2 * 6);

  how.out = (folder_ / "ring").string();
  how.parallel.algorithm = "ring";
  how.epochs = 1;
  train(3, task(), how);
  how.epochs = 2;
  for (const char* other : {"", "tree"}) {
    how.parallel.algorithm = other;
    const std::string said = refusal([&] { train(3, task(), how); });
    EXPECT_NE(said.find("would make another run"), std::string::npos) << said;
    EXPECT_NE(said.find("in the order of ring"), std::string::npos) << said;
  }
  how.parallel.algorithm = "ring";
  EXPECT_EQ(train(3, task(), how).steps, 2 * 6);
  how.epochs = 3;
  how.quiet = false;
  ::testing::internal::CaptureStderr();
  train(2, task(), how);
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("with parallel.algorithm = ring the bits depend on the number of workers, which was 3"),
            std::string::npos)
      << told;
}

TEST_F(TrainerTest, OptionsAreNamed) {
  TrainerOptions how = options("run");
  how.optimizer = "adamv";
  EXPECT_NE(refusal([&] { train(1, task(), how); }).find("optimizer: 'adamv'"), std::string::npos);
  how = options("run");
  how.schedule = {.kind = Schedule::cosine, .lr = 0.1, .final_lr = 0.2};
  EXPECT_NE(
      refusal([&] { train(1, task(), how); }).find("schedule.final_lr = 0.2 is above schedule.lr = 0.1"),
      std::string::npos);
  how = options("run");
  how.lanes = 2;
  EXPECT_NE(refusal([&] { train(3, task(), how); }).find("lanes = 2"), std::string::npos);
  Task without = task();
  without.loss = {};
  EXPECT_NE(refusal([&] { train(1, without, options("run")); }).find("no loss"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

struct NormedLine : torch::nn::Module {
  torch::nn::BatchNorm1d frozen{nullptr}, trained{nullptr};
  torch::nn::Linear out{nullptr};
  NormedLine() {
    frozen = register_module("frozen", torch::nn::BatchNorm1d(1));
    trained = register_module("trained", torch::nn::BatchNorm1d(1));
    out = register_module("out", torch::nn::Linear(1, 1));
    for (torch::Tensor& p : frozen->parameters()) p.set_requires_grad(false);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(trained(frozen(x))); }
};

// Evaluations come in between.
TEST_F(TrainerTest, ANormThatTheProgramFrozeStaysSo) {
  on_threads(thread_groups(1), [&](const Group& group) {
    auto model = std::make_shared<NormedLine>();
    model->frozen->eval();
    Trainer(model, task(), options("run"), group).run();
    EXPECT_EQ(model->frozen->running_mean.item<float>(), 0);
    EXPECT_NE(model->trained->running_mean.item<float>(), 0);
    EXPECT_TRUE(model->is_training() && model->trained->is_training() && !model->frozen->is_training());

    auto loaded = std::make_shared<NormedLine>();
    loaded->eval();  // as one that was used to infer
    Trainer(loaded, task(), options("loaded"), group).run();
    EXPECT_NE(loaded->trained->running_mean.item<float>(), 0);
  });
}

}  // namespace
}  // namespace lockstep::testing
