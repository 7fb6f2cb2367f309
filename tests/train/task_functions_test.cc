// What a task's own functions may do: throw on one rank, give what is no loss, or one that is not finite.
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "train/trainer_case.h"

namespace lockstep::testing {
namespace {

struct Single : Line {
  std::int64_t size() const override { return 1; }
};

// An Error of Lockstep's is no other: that of a call which all ranks make comes to all of them, but one of
// the user's functions, count_correct too, runs where its batches are.
TEST_F(TrainerTest, WhatOneRanksFunctionsRefuseTheOthersHearOf) {
  const std::pair<const char*, std::function<void(Task&, int rank)>> cases[] = {
      {"metric",
       [](Task& t, int) {
         t.test = std::make_shared<Single>();  // one batch, rank 0's
         t.metrics = {{"accuracy", count_correct}};
       }},
      {"test",
       [](Task& t, int rank) {
         auto data = std::make_shared<Line>();
         data->asked = [rank](auto) {
           if (rank == 0) throw UsageError("accepted: other examples");
         };
         t.test = data;
       }},
      {"loss",
       [](Task& t, int rank) {
         t.loss = [rank, calls = 0](const torch::Tensor& y, const Batch& batch) mutable {
           if (rank == 0 && ++calls == 7) throw UsageError("accepted: other outputs");
           return squared(y, batch);
         };
       }},
      {"forward",
       [](Task& t, int rank) {
         t.forward = [forward = t.forward, rank, calls = 0](const Batch& batch) mutable {
           if (rank == 0 && ++calls == 7) throw UsageError("accepted: other inputs");
           return forward(batch);
         };
       }},
  };
  for (const auto& [name, change] : cases) {
    const std::vector<Group> groups = thread_groups(2, {.timeout = std::chrono::seconds(20)});
    std::vector<std::string> said(2);
    const auto begin = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> threads;
      for (std::size_t r = 0; r < 2; ++r)
        threads.emplace_back([&, r] {
          Task what = task();
          torch::nn::Linear model(1, 1);
          what.forward = [model](const Batch& batch) mutable { return model->forward(batch.data); };
          change(what, static_cast<int>(r));
          try {
            Trainer(model, what, options(name), groups[r]).run();
          } catch (const std::exception& error) {
            said[r] = error.what();
          }
        });
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << name;
    EXPECT_NE(said[0].find("accepted: "), std::string::npos) << name << ": " << said[0];
    EXPECT_NE(said[1].find("rank 0 gave up in "), std::string::npos) << name << ": " << said[1];
    EXPECT_NE(said[1].find(said[0]), std::string::npos) << name << ": " << said[1];
  }
}

// Rows of steps are written by rank 0 between two meetings of the ranks.
TEST_F(TrainerTest, AFolderThatCanNotBeWrittenInAStepIsHeardOfByAll) {
  const auto signals = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const std::vector<Group> groups = thread_groups(2, {.timeout = std::chrono::seconds(20)});
  std::vector<std::string> said(2);
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < 2; ++r)
      threads.emplace_back([&, r] {
        Task what = task();
        what.loss = [&, r, calls = 0](const torch::Tensor& y, const Batch& batch) mutable {
          const rlimit nothing{.rlim_cur = 1, .rlim_max = before.rlim_max};
          if (r == 0 && ++calls == 7) ::setrlimit(RLIMIT_FSIZE, &nothing);
          return squared(y, batch);
        };
        torch::nn::Linear model(1, 1);
        try {
          Trainer(model, what, options("run"), groups[r]).run();
        } catch (const std::exception& error) {
          said[r] = error.what();
        }
      });
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, signals);
  EXPECT_NE(said[0].find("steps.csv: File too large"), std::string::npos) << said[0];
  EXPECT_NE(said[1].find("rank 0 gave up in Trainer::run: " + said[0]), std::string::npos) << said[1];
}

// Backward would throw libtorch's words for it, and an evaluation others.
TEST_F(TrainerTest, ALossThatIsNoNumberIsNamed) {
  const auto said = [&](const char* name, const Loss& loss) {
    Task what = task();
    what.loss = loss;
    return refusal([&] { train(1, what, options(name)); });
  };
  const std::string many =
      said("many", [](const torch::Tensor& y, const Batch& batch) { return (y - batch.target).pow(2); });
  EXPECT_NE(many.find("the loss has sizes [4, 1]; accepted: one number"), std::string::npos) << many;
  const std::string nothing =
      said("nothing", [](const torch::Tensor&, const Batch&) { return torch::Tensor(); });
  EXPECT_NE(nothing.find("the loss is undefined; accepted: one number"), std::string::npos) << nothing;
  const std::string apart =
      said("apart", [](const torch::Tensor& y, const Batch& batch) { return squared(y.detach(), batch); });
  EXPECT_NE(apart.find("the loss does not depend on the model"), std::string::npos) << apart;
  EXPECT_EQ(
      said("narrow", [](const torch::Tensor& y,
                        const Batch& batch) { return squared(y, batch).to(torch::kBFloat16).view({1}); }),
      "accepted");
}

// However often the run was stopped.
TEST_F(TrainerTest, StepsThatWereNotFiniteAreCountedOverAllParts) {
  TrainerOptions how = options("run");
  how.on_nan = "skip";
  for (const std::int64_t epochs : {1, 2, 3}) {
    Task what = task();
    what.loss = [calls = 0](const torch::Tensor& y, const Batch& batch) mutable {
      return squared(y, batch) * (++calls == 5 ? std::nan("") : 1);  // once in each part
    };
    how.epochs = epochs;
    train(1, what, how);
    const auto summary = nlohmann::json::parse(text("run/summary.json"));
    EXPECT_EQ(summary.at("steps_not_finite"), epochs);
    how.if_there = IfThere::resume;
  }
}

}  // namespace
}  // namespace lockstep::testing
