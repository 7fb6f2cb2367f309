// `lockstep plan memory` without the program: what is asked, refused and answered.
#include "plan/memory_plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/machine_memory.h"
#include "lockstep/base/error.h"
#include "plan/memory_request.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

MemoryRequest paper() {
  MemoryRequest request{.params = "7.5B", .memory = "24G"};
  request.options.workers = 64;
  request.options.precision = "bf16";
  return request;
}

Json ask(MemoryRequest request, const Given& given = {}) {
  request.json = true;
  settle(request, given);
  return Json::parse(answer(request, size_in_params(request), false));
}

std::string said(MemoryRequest request, const Given& given = {}) {
  settle(request, given);
  return answer(request, size_in_params(request), false);
}

std::string refusal(const MemoryRequest& request, const Given& given = {}) {
  try {
    (void)ask(request, given);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was refused";
}

void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
}

TEST(MemoryPlan, SaysWhichStagesFit) {
  const Json plan = ask(paper());
  ASSERT_EQ(plan.at("stages").size(), 4u);
  const double gb[] = {120, 31.4, 16.6, 1.9};
  const bool fits[] = {false, false, true, true};
  for (std::size_t stage = 0; stage < 4; ++stage) {
    const Json& row = plan.at("stages")[stage];
    EXPECT_EQ(row.at("stage"), stage);
    EXPECT_NEAR(row.at("state_bytes").get<double>() / 1e9, gb[stage], 0.05);
    EXPECT_EQ(row.at("total_bytes").get<double>(),
              row.at("state_bytes").get<double>() + row.at("in_flight_bytes").get<double>());
    EXPECT_EQ(row.at("fits"), fits[stage]) << stage;
  }
  EXPECT_EQ(plan.at("params"), 7'500'000'000);
  EXPECT_EQ(plan.at("memory_bytes"), 24LL << 30);
  expect_words(said(paper()), {"7.5B parameters, bf16, adamw: 64 workers, 64 lanes",
                               "24 GiB (25.8 GB) a worker", "120.0 GB", "31.4 GB", "16.6 GB", "1.9 GB",
                               "fits    zero2, zero3\n", "not counted: activations", "nothing is gathered"});
}

TEST(MemoryPlan, ShowsOneStage) {
  MemoryRequest request = paper();
  request.stage = "1";
  EXPECT_EQ(ask(request).at("stages").size(), 1u);
  EXPECT_EQ(ask(request).at("stages")[0].at("strategy"), "zero1");
  const std::string text = said(request);
  expect_words(text, {"fits    none of these\n"});
  EXPECT_EQ(text.find("zero3"), std::string::npos) << text;
}

TEST(MemoryPlan, TakesTheNameThatARunTakes) {
  for (int stage = 0; stage < 4; ++stage) {
    MemoryRequest by_stage = paper(), by_name = paper();
    by_stage.stage = std::to_string(stage);
    by_name.options.strategy = kStageStrategies[stage];
    EXPECT_EQ(said(by_name, {"strategy"}), said(by_stage)) << stage;
  }
  MemoryRequest request = paper();
  request.stage = "2";
  request.options.strategy = "zero2";
  expect_words(refusal(request, {"strategy"}), {"--stage 2", "--strategy zero2", "one of them"});
  request.stage.clear();
  request.options.strategy = "zero4";
  expect_words(refusal(request, {"strategy"}), {"--strategy", "zero4", "hybrid-shard"});
  request.options.strategy = "zero2";
  request.options.offload = "/tmp";
  request.options.offload_what = "params";
  expect_words(refusal(request, {"strategy"}), {"--offload-what params", "--strategy is zero2", "zero3"});
}

// In shards inside of machines: what zero3 takes where a machine has one copy, and more where it gathers.
TEST(MemoryPlan, KnowsShardsInsideOfMachines) {
  MemoryRequest request = paper();
  request.machines = 16;
  request.options.strategy = "hybrid-shard";
  const Json row = ask(request, {"strategy"}).at("stages")[0];
  EXPECT_EQ(ask(request, {"strategy"}).at("stages").size(), 1u);
  EXPECT_EQ(row.at("strategy"), "hybrid-shard");
  EXPECT_EQ(row.at("parameter_bytes"), 15'000'000'000 / 4);
  expect_words(said(request, {"strategy"}),
               {"fits    hybrid-shard\n", "hybrid-shard: the 4 workers of a machine"});
  request.gpu = true;
  EXPECT_EQ(ask(request, {"strategy"}).at("stages")[0].at("parameter_bytes"), 15'000'000'000 / 4);
  expect_words(said(request, {"strategy"}), {"hybrid-shard: GPUs have no memory in common"});
  MemoryRequest all = request;
  all.options.strategy = "zero3";
  EXPECT_EQ(ask(all, {"strategy"}).at("stages")[0].at("parameter_bytes"), 15'000'000'000 / 64);
  settle(request, {"strategy"});  // as the second program gets it
  const MemoryRequest arrived = memory_request(to_json(request));
  EXPECT_EQ(answer(arrived, size_in_params(arrived), false), answer(request, size_in_params(request), false));
}

TEST(MemoryPlan, WorkersOfThisMachineShareItsMemory) {
  MemoryRequest request = paper();
  request.memory = "";
  EXPECT_NEAR(ask(request).at("memory_bytes").get<double>(), machine_memory() / 64, 1);
  expect_words(said(request), {"a worker: this machine's", "for 64 workers\n"});
  request.machines = 16;
  EXPECT_NEAR(ask(request).at("memory_bytes").get<double>(), machine_memory() / 4, 1);
}

TEST(MemoryPlan, KnowsWhereParametersCanBeShared) {
  MemoryRequest request = paper();
  request.machines = 16;
  request.stage = "3";
  Json row = ask(request).at("stages")[0];
  EXPECT_EQ(ask(request).at("machines"), 16);
  EXPECT_EQ(row.at("parameter_bytes"), 15'000'000'000 / 4);
  EXPECT_EQ(row.at("fits"), true);
  expect_words(said(request),
               {"64 workers on 16 machines", "the 4 workers of a machine", "arrives in buckets"});
  request.machines = 64;
  expect_words(said(request),
               {"fits    zero3", "no two workers are on one machine", "gathers units", "--unit-params"});
  request.unit_params = "200M";
  row = ask(request).at("stages")[0];
  EXPECT_EQ(row.at("fits"), true);
  EXPECT_EQ(row.at("in_flight_bytes"), 3 * (25 << 20) + 2 * 400'000'000);
  expect_words(said(request), {"2 units of up to 400.0 MB"});
  request.machines = 3;
  expect_words(refusal(request), {"--machines 3", "64 workers", "divides"});
  request.machines = 0;
  expect_words(refusal(request), {"--machines 0"});
}

TEST(MemoryPlan, KnowsThatWorkersOfOneGpuShareParameters) {
  MemoryRequest request = paper();
  request.stage = "3";
  request.unit_params = "200M";
  request.gpu = true;
  EXPECT_EQ(ask(request).at("stages")[0].at("in_flight_bytes"), 3 * (25 << 20) + 2 * 400'000'000);
  expect_words(said(request), {"GPUs have no memory in common (--one-gpu", "2 units of up to 400.0 MB"});
  request.gpu = false;
  request.one_gpu = true;
  const Json row = ask(request).at("stages")[0];
  EXPECT_EQ(row.at("parameter_bytes"), 15'000'000'000 / 64);
  EXPECT_EQ(row.at("in_flight_bytes"), 3 * (25 << 20));
  expect_words(said(request),
               {"the 64 workers of a GPU have one copy of the parameters", "nothing is gathered"});
  request.machines = 2;
  expect_words(refusal(request), {"--one-gpu", "--machines is 2", "accepted: 1"});
}

TEST(MemoryPlan, LanesThatShareAWorkerKeepGradientsWhole) {
  MemoryRequest request = paper();
  request.options.workers = 3;
  request.options.lanes = 8;  // workers carry 2, 2 and 4: the last one's two sets of buckets count
  const Json plan = ask(request);
  for (const Json& row : plan.at("stages"))
    EXPECT_EQ(row.at("gradient_bytes"), 2 * 15'000'000'000 + (row.at("stage") >= 2 ? 5'000'000'000 : 0));
  expect_words(said(request), {"up to 4 lanes", "zero1, 2 sets of buckets"});
  request.options.lanes = 3;
  EXPECT_EQ(ask(request).at("stages")[2].at("gradient_bytes"), 5'000'000'000);
  EXPECT_EQ(said(request).find("up to 4 lanes"), std::string::npos);
}

TEST(MemoryPlan, KnowsPrecisionsAndOptimizers) {
  const struct {
    const char *precision, *optimizer;
    double bytes;  // a parameter
  } cases[] = {{"fp32", "adamw", 16},          {"bf16", "adam", 16}, {"fp16", "lamb", 16},
               {"bf16-autocast", "adamw", 16}, {"fp32", "sgd", 12},  {"bf16", "lars", 12}};
  for (const auto& c : cases) {
    MemoryRequest request = paper();
    request.options.precision = c.precision;
    request.options.optimizer = c.optimizer;
    EXPECT_EQ(ask(request).at("stages")[0].at("state_bytes"), c.bytes * 7.5e9) << c.precision << c.optimizer;
  }
  MemoryRequest plain = paper();
  plain.options.optimizer = "sgd";
  plain.options.momentum = 0;
  plain.options.reduce_precision = "fp32";
  EXPECT_EQ(ask(plain).at("stages")[0].at("state_bytes"), (2 + 4 + 4) * 7.5e9);
}

TEST(MemoryPlan, RefusesInOneLine) {
  MemoryRequest request = paper();
  request.params = "7.5G";
  expect_words(refusal(request), {"--params '7.5G'", "7.5B"});
  request.params = "";
  expect_words(refusal(request), {"--params", "--model"});
  request = paper();
  expect_words(refusal(request, {"model"}), {"--model", "--params", "one of them"});
  expect_words(refusal(request, {"blocks"}), {"--blocks", "--params"});
  request.stage = "4";
  expect_words(refusal(request), {"--stage '4'", "0, 1, 2, 3"});
  request = paper();
  for (const char* memory : {"24X", "0", "much"}) {
    request.memory = memory;
    expect_words(refusal(request), {"--memory: ", "accepted: "});
  }
  request = paper();
  request.unit_params = "8B";
  expect_words(refusal(request), {"--unit-params 8B", "--params 7.5B"});
  request = paper();
  request.options.lanes = 8;
  expect_words(refusal(request), {"--lanes 8", "64 workers"});
  request = paper();
  request.options.workers = -1;
  expect_words(refusal(request), {"--workers", "'-1'", "1 to"});
  request.options.workers = 4096;  // more than one launcher starts
  EXPECT_EQ(ask(request).at("workers"), 4096);
  request.options.optimizer = "adagrad";
  expect_words(refusal(request), {"--optimizer", "adagrad", "lamb"});
}

// Four workers on two GPUs: each has a half of one. This machine's own memory is no GPU's.
TEST(MemoryPlan, TakesTheMemoryOfGpusThatAreHere) {
  MemoryRequest request = paper();
  request.gpu = true;
  EXPECT_TRUE(is_arithmetic(request));
  request.memory.clear();
  EXPECT_FALSE(is_arithmetic(request));
  expect_words(refusal(request), {"--gpu: there is no GPU here", "accepted: --memory"});
  request.options.workers = 4;
  request.gpus = {.count = 2, .bytes = 80e9};
  EXPECT_EQ(ask(request).at("memory_bytes"), 40'000'000'000);
  expect_words(said(request), {"40.0 GB) a worker: its part of a GPU of this machine"});
  request.gpus.count = 8;
  EXPECT_EQ(ask(request).at("memory_bytes"), 80'000'000'000);
  request.one_gpu = true;
  EXPECT_EQ(ask(request).at("memory_bytes"), 20'000'000'000);
}

TEST(MemoryPlan, RefusesWhatARunWouldRefuse) {
  MemoryRequest request = paper();
  request.options.offload = "/tmp";
  request.options.offload_what = "params";
  for (const char* stage : {"0", "1", "2"}) {
    request.stage = stage;
    expect_words(refusal(request),
                 {"--offload-what params is of parameters in shards", stage, "accepted: 3"});
  }
  request.options.offload = "/tmp/nowhere/at/all";
  request.stage = "3";
  expect_words(refusal(request), {"--offload /tmp/nowhere/at/all: No such file", "accepted: a folder"});
  request.options.offload = "host";
  expect_words(refusal(request), {"--offload host", "accepted: a folder"});
  request.options.offload_what = "state";
  expect_words(refusal(request), {"--offload host: without --gpu", "or --gpu"});
}

// What the second program gets is what was asked.
TEST(MemoryPlan, ARequestTravels) {
  MemoryRequest request = paper();
  request.stage = "3";
  request.unit_params = "200M";
  request.machines = 64;
  request.options.lanes = 128;
  settle(request, {});
  const MemoryRequest arrived = memory_request(to_json(request));
  EXPECT_EQ(answer(arrived, size_in_params(arrived), false), answer(request, size_in_params(request), false));
}

}  // namespace
}  // namespace lockstep
