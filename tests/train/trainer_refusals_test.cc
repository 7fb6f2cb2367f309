// What a trainer must not take in silence: options, data and metrics that can't be meant, files that are not
// its own, ranks that differ or throw.
#include <torch/nn/modules/container/sequential.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <stdexcept>
#include <thread>
#include <utility>

#include "lockstep/checkpoint/store.h"
#include "lockstep/compress/compress.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "train/trainer_case.h"

namespace lockstep::testing {
namespace {

// Killed before its first checkpoint, a run begins anew: with the weights that it was to begin with.
TEST_F(TrainerTest, ARunThatGoesOnBeforeItsFirstCheckpointKeepsItsInit) {
  train(1, task(), options("first"));
  TrainerOptions how = options("second");
  how.init = (folder_ / "first").string();
  const TrainerResult whole = train(1, task(), how);
  how.out = (folder_ / "third").string();
  how.if_there = IfThere::resume;
  fs::create_directories(how.out);
  fs::copy_file(folder_ / "second" / "config.json", folder_ / "third" / "config.json");
  EXPECT_EQ(train(2, task(), how).params_sha256, whole.params_sha256);
}

TEST_F(TrainerTest, ResumeReplacesNoFileThatNoRunWrote) {
  fs::create_directories(folder_ / "site");
  std::ofstream(folder_ / "site" / "index.html") << "<h1>Mine</h1>\n";
  TrainerOptions how = options("site");
  how.if_there = IfThere::resume;
  const std::string said = refusal([&] { train(1, task(), how); });
  EXPECT_NE(said.find("site/index.html"), std::string::npos) << said;
  EXPECT_EQ(text("site/index.html"), "<h1>Mine</h1>\n");
}

TEST_F(TrainerTest, OverwriteKeepsTheWeightsThatItBeginsWith) {
  TrainerOptions how = options("run");
  train(1, task(), how);
  how.init = how.out;
  how.if_there = IfThere::overwrite;
  const std::string said = refusal([&] { train(1, task(), how); });
  EXPECT_NE(said.find("would remove"), std::string::npos) << said;
  EXPECT_FALSE(text("run/summary.json").empty());
}

TEST_F(TrainerTest, OverwriteKeepsTheWeightsThatItBeginsWithWhereTheyWereSetAside) {
  TrainerOptions how = options("run");
  train(1, task(), how);
  const fs::path newest = find_checkpoint(how.out);
  const fs::path aside = newest.parent_path() / "set-aside" / newest.filename();
  fs::create_directories(aside.parent_path());
  fs::rename(newest, aside);
  how.init = aside.string();
  how.if_there = IfThere::overwrite;
  const std::string said = refusal([&] { train(1, task(), how); });
  EXPECT_NE(said.find("would remove"), std::string::npos) << said;
  EXPECT_TRUE(fs::exists(aside / "manifest.json"));
}

// A seed from the clock on every rank would be another order of examples on each.
TEST_F(TrainerTest, OptionsThatDifferBetweenRanksAreNamed) {
  on_threads(thread_groups(3), [&](const Group& group) {
    TrainerOptions how = options("run");
    how.seed = group.rank() == 2 ? 4 : 3;
    torch::nn::Linear model(1, 1);
    const std::string said = refusal([&] { Trainer(model, task(), how, group).run(); });
    EXPECT_NE(said.find("rank 2: seed = 4"), std::string::npos) << said;
    EXPECT_NE(said.find("rank 0 has 3"), std::string::npos) << said;
  });
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

// The optimizer and the exchange of 1-bit Adam are of use to each other alone.
TEST_F(TrainerTest, MomentaThatNobodyTakesOrSends) {
  const auto expect_words = [&](const TrainerOptions& how, const std::string& words) {
    torch::nn::Sequential model(torch::nn::Linear(1, 64), torch::nn::Linear(64, 1));
    const std::string said = refusal([&] { Trainer(model, task(), how, thread_groups(1)[0]).run(); });
    EXPECT_NE(said.find(words), std::string::npos) << said;
    EXPECT_FALSE(fs::exists(folder_ / "run"));
  };
  TrainerOptions how = options("run");
  how.optimizer = "onebit-adam";
  expect_words(how, "carries no momenta; accepted: compressed({.method = \"onebit-adam\"})");
  how.clip_norm = 1;
  expect_words(how, "accepted: clip_norm and clip_value 0");
  how.clip_norm = 0;
  how.parallel.exchange = compressed({.method = "onebit-adam:min=0", .lanes = how.lanes});
  how.optimizer = "adamw";
  expect_words(how, "brings momenta; accepted: onebit-adam");
}

// Before the folder is made, and not in the middle of an epoch.
TEST_F(TrainerTest, LanesThatASynchronisedNormCannotBeTrainedWith) {
  const auto said_with = [&](int workers, const TrainerOptions& how) {
    std::string said;
    on_threads(thread_groups(workers), [&](const Group& group) {
      torch::nn::Sequential model(torch::nn::Linear(1, 4), SyncBatchNorm(4), torch::nn::Linear(4, 1));
      const std::string mine = refusal([&] { Trainer(model, task(), how, group).run(); });
      if (group.rank() == 0) said = mine;
    });
    return said;
  };
  TrainerOptions how = options("run");
  how.threads = 1;
  EXPECT_NE(said_with(2, how).find("4 lanes on 2 workers are not one on each"), std::string::npos);
  how.lanes = 6;  // whole subtrees: the fifth worker has two
  EXPECT_NE(said_with(6, how).find("accepted: 8 workers with as many lanes"), std::string::npos);
  how.lanes = 2;
  how.last_step = LastStep::short_;
  EXPECT_NE(said_with(2, how).find("last_step = short"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  how.last_step = LastStep::wrap;
  EXPECT_EQ(said_with(2, how), "accepted");
}

// Most programs' datasets have no fingerprint; how many examples they have is known.
class Nameless : public Line {
 public:
  explicit Nameless(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  std::string fingerprint() const override { return {}; }

 private:
  std::int64_t size_;
};

TEST_F(TrainerTest, DataOfAnotherSizeIsOtherData) {
  TrainerOptions how = options("run");
  train(1, task(std::make_shared<Nameless>(96)), how);
  how.if_there = IfThere::resume;
  how.epochs = 4;
  const std::string grown = refusal([&] { train(2, task(std::make_shared<Nameless>(95)), how); });
  EXPECT_NE(grown.find("training examples are 95, those of the run 96"), std::string::npos) << grown;
  EXPECT_EQ(train(1, task(std::make_shared<Nameless>(96)), how).steps, 4 * 6);
  on_threads(thread_groups(2), [&](const Group& group) {
    torch::nn::Linear model(1, 1);
    const Task mine = task(std::make_shared<Nameless>(group.rank() == 1 ? 95 : 96));
    const std::string said = refusal([&] { Trainer(model, mine, options("other"), group).run(); });
    EXPECT_NE(said.find("rank 1 reads other data than rank 0 (95 and 96"), std::string::npos) << said;
  });
}

// Before anything is written, or removed.
TEST_F(TrainerTest, NumbersThatAreNoneAreRefusedFirst) {
  train(1, task(), options("run"));
  const std::string before = text("run/summary.json");
  const std::pair<const char*, std::function<void(TrainerOptions&)>> cases[] = {
      {"eval_batch = 0", [](TrainerOptions& o) { o.eval_batch = 0; }},
      {"eval_every = -1", [](TrainerOptions& o) { o.eval_every = -1; }},
      {"checkpoint_every = -2", [](TrainerOptions& o) { o.checkpoint_every = -2; }},
      {"keep = -1", [](TrainerOptions& o) { o.keep = -1; }},
      {"trace_steps = -1", [](TrainerOptions& o) { o.trace_steps = -1; }},
      {"threads = 0", [](TrainerOptions& o) { o.threads = 0; }},
      {"loader_threads = 0", [](TrainerOptions& o) { o.loader_threads = 0; }},
      {"lanes = -1", [](TrainerOptions& o) { o.lanes = -1; }},
      {"lane_batch = 0", [](TrainerOptions& o) { o.lane_batch = 0; }},
      {"epochs = -1", [](TrainerOptions& o) { o.epochs = -1; }},
      {"every", [](TrainerOptions& o) { o.schedule.kind = Schedule::step; }},
      {"lr", [](TrainerOptions& o) { o.schedule.lr = std::nan(""); }},
      {"trust_clip", [](TrainerOptions& o) { o.trust_clip = std::nan(""); }},
      {"momentum", [](TrainerOptions& o) { o.optimizer = "torch-sgd", o.momentum = std::nan(""); }},
      {"weight_decay", [](TrainerOptions& o) { o.optimizer = "torch-adam", o.weight_decay = -1; }},
      {"clip_norm", [](TrainerOptions& o) { o.clip_norm = -1; }},
      {"clip_value", [](TrainerOptions& o) { o.clip_value = std::nan(""); }},
      {"warmup_epochs", [](TrainerOptions& o) { o.warmup_epochs = -1; }},
      {"longer than the run", [](TrainerOptions& o) { o.schedule.warmup_steps = 1 << 20; }},
      {"'*gain' matches no parameter", [](TrainerOptions& o) { o.exclude = "1-d,*gain"; }},
      {"nesterov", [](TrainerOptions& o) { o.nesterov = true; }},
      {"model_name", [](TrainerOptions& o) { o.model_name = "caf\xe9"; }},
  };
  for (const auto& [words, change] : cases) {
    TrainerOptions how = options("run");
    how.if_there = IfThere::overwrite;
    change(how);
    const std::string said = refusal([&] { train(1, task(), how); });
    EXPECT_NE(said.find(words), std::string::npos) << words << ": " << said;
    EXPECT_EQ(text("run/summary.json"), before) << words;
  }
}

TEST_F(TrainerTest, WhatCantBeEvaluatedIsRefusedFirst) {
  const auto said = [&](const std::function<void(Task&)>& change) {
    Task what = task();
    change(what);
    return refusal([&] { train(1, what, options("run")); });
  };
  EXPECT_NE(said([](Task& t) { t.metrics[0].second = {}; }).find("'distance'"), std::string::npos);
  EXPECT_NE(said([](Task& t) { t.metrics.push_back(t.metrics[0]); }).find("'distance'"), std::string::npos);
  for (const char* name : {"", "mean, of all", "two\nlines", "step", "validation_loss"}) {
    const std::string words = said([&](Task& t) { t.metrics[0].first = name; });
    EXPECT_NE(words.find("a metric called '"), std::string::npos) << name << ": " << words;
  }
  EXPECT_NE(said([](Task& t) { t.test = std::make_shared<Nameless>(0); }).find("test"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(TrainerTest, AModelThatCantLearnIsRefusedFirst) {
  torch::nn::Linear frozen(1, 1);
  for (torch::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  const Group group = thread_groups(1)[0];
  EXPECT_NE(refusal([&] { Trainer(frozen, task(), options("run"), group).run(); }).find("no parameter"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              Trainer(torch::nn::Identity(), task(), options("run"), group).run();
            }).find("no parameter"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(TrainerTest, MetricsOfNothingAreNotANumberOnEveryProcessor) {
  Task what = task();
  what.metrics = {{"none", [](const torch::Tensor&, const Batch&) { return MetricSum{}; }},
                  {"without", [](const torch::Tensor&, const Batch&) {
                     return MetricSum{5, 0};
                   }}};
  const TrainerResult result = train(2, what, options("run"));
  EXPECT_TRUE(std::isnan(result.metrics.at("none")) && std::isnan(result.metrics.at("without")));
  EXPECT_NE(text("run/evaluations.csv").find(",nan,nan\n"), std::string::npos) << text("run/evaluations.csv");
  EXPECT_EQ(text("run/evaluations.csv").find("-nan"), std::string::npos);
}

// [4, 1] beside [4] would be compared as [4, 4].
TEST(CountCorrect, RefusesTargetsOfAnotherShape) {
  const torch::Tensor output = torch::eye(4);
  const torch::Tensor classes = torch::tensor(std::vector<std::int64_t>{0, 1, 2, 2});
  const MetricSum found = count_correct(output, {.data = {}, .target = classes});
  EXPECT_EQ(found.sum, 3);
  EXPECT_EQ(found.count, 4);
  EXPECT_THROW(count_correct(output, {.data = {}, .target = classes.unsqueeze(1)}), UsageError);
}

TEST_F(TrainerTest, RunsOnce) {
  TrainerOptions how = options("run");
  how.if_there = IfThere::overwrite;
  train(1, task(), how);
  torch::nn::Linear model(1, 1);
  Trainer trainer(model, task(), how, thread_groups(1)[0]);
  trainer.run();
  const std::string before = text("run/summary.json");
  EXPECT_NE(refusal([&] { trainer.run(); }).find("once"), std::string::npos);
  EXPECT_EQ(text("run/summary.json"), before);
  EXPECT_TRUE(fs::exists(folder_ / "run" / "checkpoints"));
}

TEST_F(TrainerTest, TheProgramsOwnSignalHandlersComeBack) {
  struct sigaction own {
  }, before{}, after{};
  own.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGTERM, &own, &before), 0);
  train(2, task(), options("run"));
  ASSERT_EQ(::sigaction(SIGTERM, &before, &after), 0);
  EXPECT_EQ(after.sa_handler, own.sa_handler);
}

TEST_F(TrainerTest, FewerStepsThanAreDoneAreNamedAsSteps) {
  TrainerOptions how = options("run");
  how.epochs = 0;
  how.steps = 10;
  train(1, task(), how);
  how.if_there = IfThere::resume;
  how.steps = 5;
  const std::string said = refusal([&] { train(1, task(), how); });
  EXPECT_NE(said.find("steps = 5 is less"), std::string::npos) << said;
  EXPECT_NE(said.find("accepted: 10 or more"), std::string::npos) << said;
}

TEST_F(TrainerTest, OneTestExampleForManyWorkers) {
  Task what = task(std::make_shared<Nameless>(5));  // less than a step, too
  what.test = std::make_shared<Nameless>(1);
  const TrainerResult one = train(1, what, options("one"));
  const TrainerResult four = train(4, what, options("four"));
  EXPECT_EQ(one.steps, 3);
  EXPECT_EQ(one.params_sha256, four.params_sha256);
  EXPECT_EQ(*one.validation_loss, *four.validation_loss);
  EXPECT_EQ(one.metrics, four.metrics);
}

// A loss, a dataset and a metric of the user's that throw on one rank, whose program keeps its group: the
// others hear of it, and why.
TEST_F(TrainerTest, WhenOneRankThrowsTheOthersDoNotWaitForTheTimeout) {
  const auto throws = [](bool now) {
    if (now) throw std::runtime_error("flat battery");
  };
  const std::pair<const char*, std::function<void(Task&, int rank)>> cases[] = {
      {"loss",
       [&](Task& t, int rank) {
         t.loss = [throws, rank, calls = std::make_shared<int>(0)](const torch::Tensor& y,
                                                                   const Batch& batch) {
           throws(rank == 1 && ++*calls == 7);
           return squared(y, batch);
         };
       }},
      {"data",
       [&](Task& t, int rank) {
         auto data = std::make_shared<Line>();
         data->asked = [throws, rank, calls = std::make_shared<std::atomic<int>>(0)](auto) {
           throws(rank == 1 && ++*calls >= 7);
         };
         t.train = data;
       }},
      {"metric",
       [&](Task& t, int rank) {
         t.metrics = {{"distance", [throws, rank](const torch::Tensor& y, const Batch& batch) {
                         throws(rank == 0);
                         return distance(y, batch);
                       }}};
       }},
  };
  for (const auto& [name, change] : cases) {
    const std::vector<Group> groups = thread_groups(2, {.timeout = std::chrono::seconds(60)});
    std::vector<std::string> said(2);
    const auto begin = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> threads;
      for (std::size_t r = 0; r < 2; ++r)
        threads.emplace_back([&, r] {
          Task what = task();
          change(what, static_cast<int>(r));
          torch::nn::Linear model(1, 1);
          try {
            Trainer(model, what, options(name), groups[r]).run();
          } catch (const std::exception& error) {
            said[r] = error.what();
          }
        });
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30)) << name;
    const bool first = std::string(name) == "metric";
    EXPECT_NE(said[first ? 0 : 1].find("flat battery"), std::string::npos) << said[first ? 0 : 1];
    const std::string& other = said[first ? 1 : 0];
    EXPECT_NE(other.find((first ? "rank 0" : "rank 1") + std::string(" gave up")), std::string::npos)
        << other;
    EXPECT_NE(other.find("flat battery"), std::string::npos) << other;
  }
}

}  // namespace
}  // namespace lockstep::testing
