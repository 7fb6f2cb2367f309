// Steps that are not finite where each worker has a part of the parameters, and gathers them in units.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/parallel/units.h"
#include "train/trainer_case.h"

namespace lockstep::testing {
namespace {

using Json = nlohmann::json;

// A batch of an epoch, and with it the loss, is no number.
class LineWithAGap : public Line {
 public:
  Batch get(std::span<const std::int64_t> indices, RandomStream* random) const override {
    Batch batch = Line::get(indices, random);
    if (std::ranges::find(indices, 7) != indices.end()) batch.data.fill_(std::nanf(""));
    return batch;
  }
};

struct LineInAUnit : torch::nn::Module {
  UnitOf<torch::nn::LinearImpl> line;
  LineInAUnit() {
    line = shard(register_module("line", torch::nn::Linear(1, 1)));
    torch::nn::init::constant_(line->weight, 0.5);
    torch::nn::init::constant_(line->bias, 0);
  }
  torch::Tensor forward(const torch::Tensor& x) { return line.forward(x); }
};

class NotFinite : public TrainerTest {
 protected:
  TrainerOptions gathered(const std::string& name, const std::string& on_nan) const {
    TrainerOptions how = options(name);
    how.strategy = "zero3";
    how.parallel.parameters = ParameterAccess::gathered;
    how.on_nan = on_nan;
    how.optimizer = "sgd";
    how.checkpoint_every = 1;
    return how;
  }
  Task gap() const {
    return {.train = std::make_shared<LineWithAGap>(), .test = std::make_shared<Line>(), .loss = squared};
  }
};

TEST_F(NotFinite, IsSkippedWhereParametersAreGathered) {
  std::set<std::string> hashes;
  for (const int workers : {0, 1, 2, 3}) {  // 0: one that has them whole
    const std::string name = "of" + std::to_string(workers);
    TrainerOptions how = gathered(name, "skip");
    if (workers == 0) how.strategy = "ddp", how.parallel = {};
    on_threads(thread_groups(std::max(1, workers)), [&](const Group& group) {
      const TrainerResult result = Trainer(std::make_shared<LineInAUnit>(), gap(), how, group).run();
      EXPECT_EQ(result.steps, 18);
      if (group.rank() == 0) hashes.insert(result.params_sha256);
    });
    EXPECT_EQ(Json::parse(text(name + "/summary.json")).at("steps_not_finite"), 3) << workers;
  }
  EXPECT_EQ(hashes.size(), 1u);
}

TEST_F(NotFinite, EndsTheRunWhereParametersAreGathered) {
  on_threads(thread_groups(2), [&](const Group& group) {
    Trainer trainer(std::make_shared<LineInAUnit>(), gap(), gathered("run", "stop"), group);
    std::string said;
    try {
      trainer.run();
    } catch (const SystemError& error) {
      said = error.what();
    }
    EXPECT_NE(said.find("all weights are finite; stopped"), std::string::npos) << said;
  });
}

}  // namespace
}  // namespace lockstep::testing
