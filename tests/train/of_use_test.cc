// Options of a trainer that others make void are named, before anything is written.
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/manifest.h"
#include "lockstep/checkpoint/sha256.h"
#include "lockstep/checkpoint/store.h"
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
      {"cuda_graph changes nothing with device = cpu", [](TrainerOptions& o) { o.cuda_graph = true; }},
      {"parallel.offload_params changes nothing with strategy = zero2; accepted: with zero3",
       [](TrainerOptions& o) { o.strategy = "zero2", o.parallel.offload_params.folder = "/tmp"; }},
      {"parallel.offload_params changes nothing with strategy = ddp",
       [](TrainerOptions& o) { o.parallel.offload_params.folder = "/tmp"; }},
  };
  for (const auto& [words, change] : cases) {
    TrainerOptions how = options("run");
    change(how);
    const std::string said = refusal([&] { train(1, task(), how); });
    EXPECT_NE(said.find(words), std::string::npos) << words << ": " << said;
    EXPECT_FALSE(fs::exists(folder_ / "run")) << words;
  }
}

// A run that an older version wrote, which took such options, goes on without them.
TEST_F(TrainerTest, ARunThatHasOneGoesOnWithoutIt) {
  TrainerOptions how = options("run");
  how.epochs = 1;
  train(1, task(), how);
  const fs::path checkpoint = find_checkpoint(folder_ / "run");
  auto state = nlohmann::json::parse(std::ifstream(checkpoint / "state.json"));
  state["options"]["momentum"] = 0.5;  // of adamw
  state["options"]["lr_factor"] = 0.5;
  std::ofstream(checkpoint / "state.json") << state;
  Manifest manifest = read_manifest(checkpoint);
  manifest.files["state.json"] = {.bytes = fs::file_size(checkpoint / "state.json"),
                                  .sha256 = sha256_file(checkpoint / "state.json")};
  std::ofstream(checkpoint / kManifestName) << compose_manifest(manifest);
  how.epochs = 2;
  TrainerOptions at_once = how;
  at_once.out += " at once";
  how.if_there = IfThere::resume;
  EXPECT_EQ(train(1, task(), how).params_sha256, train(1, task(), at_once).params_sha256);
}

}  // namespace
}  // namespace lockstep::testing
