// Options of a trainer that others make void are named, before anything is written.
#include <functional>
#include <utility>

#include "train/trainer_case.h"

namespace lockstep::testing {
namespace {

// As the flags of lockstep train are.
TEST_F(TrainerTest, OptionsThatChangeNothingAreNamed) {
  const std::pair<const char*, std::function<void(TrainerOptions&)>> cases[] = {
      {"momentum = 0.5 changes nothing with optimizer = adamw", [](TrainerOptions& o) { o.momentum = 0.5; }},
      {"trust_coefficient = 0.1 changes nothing with optimizer = lamb",
       [](TrainerOptions& o) { o.optimizer = "lamb", o.trust_coefficient = 0.1; }},
      {"trust_clip = 10 changes nothing with optimizer = adamw",
       [](TrainerOptions& o) { o.trust_clip = 10; }},
      {"schedule.final_lr = 0.001 changes nothing with schedule.kind = constant; accepted: with cosine",
       [](TrainerOptions& o) { o.schedule.final_lr = 0.001; }},
      {"schedule.power = 3 changes nothing with schedule.kind = cosine",
       [](TrainerOptions& o) { o.schedule.kind = Schedule::cosine, o.schedule.power = 3; }},
      {"schedule.every = 5 changes nothing with schedule.kind = linear",
       [](TrainerOptions& o) { o.schedule.kind = Schedule::linear, o.schedule.every = 5; }},
      {"schedule.factor = 0.5 changes nothing with schedule.kind = constant",
       [](TrainerOptions& o) { o.schedule.factor = 0.5; }},
      {"scaler changes nothing with loss_scaling = auto and precision = fp32",
       [](TrainerOptions& o) { o.scaler.growth_interval = 5; }},
      {"deterministic changes nothing with device = cpu", [](TrainerOptions& o) { o.deterministic = true; }},
      {"tf32 changes nothing with device = cpu", [](TrainerOptions& o) { o.tf32 = true; }},
  };
  for (const auto& [words, change] : cases) {
    TrainerOptions how = options("run");
    change(how);
    const std::string said = refusal([&] { train(1, task(), how); });
    EXPECT_NE(said.find(words), std::string::npos) << words << ": " << said;
    EXPECT_FALSE(fs::exists(folder_ / "run")) << words;
  }
}

}  // namespace
}  // namespace lockstep::testing
