#include "cli/train_options.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/train_config.h"
#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

// The message of the UsageError that `call` throws; empty when it throws none.
template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

void expect_words(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

class TrainConfig : public ::testing::Test {
 protected:
  TrainConfig() {
    std::string name = (fs::temp_directory_path() / "lockstep-config-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~TrainConfig() override { fs::remove_all(folder_); }

  Given load(const std::string& name, const std::string& text, const Given& given = {}) {
    std::ofstream(folder_ / name) << text;
    return load_config((folder_ / name).string(), options_, given);
  }

  fs::path folder_;
  TrainOptions options_;
};

TEST(TrainOptions, EveryOptionTravelsThroughJson) {
  TrainOptions a;
  a.model = "gpt";
  a.lr = 0.25;
  a.seed = UINT64_MAX;
  a.no_augment = true;
  a.bucket_cap_mb = 0.5;
  TrainOptions b;
  const Given given = merge_json(b, to_json(a), "here");
  EXPECT_EQ(to_json(a), to_json(b));
  EXPECT_EQ(b.seed, UINT64_MAX);
  EXPECT_TRUE(given.contains("no_augment"));
  EXPECT_FALSE(given.contains("weight_decay"));  // not decided, so not written
}

TEST(TrainOptions, WhatFollowsIsFilledIn) {
  TrainOptions o;
  check_options(o);
  EXPECT_EQ(*o.lr, 5e-4);
  EXPECT_EQ(*o.weight_decay, 1e-4);
  EXPECT_EQ(o.epochs, 1);
  TrainOptions sgd;
  sgd.optimizer = "torch-sgd";
  sgd.model = "gpt";
  sgd.steps = 5;
  check_options(sgd);
  EXPECT_EQ(*sgd.lr, 0.05);
  EXPECT_EQ(*sgd.weight_decay, 0);
  EXPECT_EQ(sgd.width, 256);
  EXPECT_EQ(sgd.epochs, 0);
}

TEST(TrainOptions, BadValuesNameTheFlagAndWhatIsAccepted) {
  const auto message = [](auto change) {
    return refusal([&] {
      TrainOptions o;
      change(o);
      check_options(o);
    });
  };
  expect_words(message([](auto& o) { o.model = "resnet17"; }), {"--model", "resnet17", "resnet18", "mlp"});
  expect_words(message([](auto& o) { o.precision = "bf16"; }), {"--precision", "bf16", "fp32"});
  expect_words(message([](auto& o) { o.device = "cuda"; }), {"--device", "cuda", "cpu"});
  expect_words(message([](auto& o) { o.strategy = "zero1"; }), {"--strategy", "zero1", "ddp"});
  expect_words(message([](auto& o) { o.lane_batch = 0; }), {"--lane-batch", "0", "1 to"});
  expect_words(message([](auto& o) { o.lr = -1; }), {"--lr", "-1"});
  expect_words(message([](auto& o) { o.lr = NAN; }), {"--lr", "nan"});
  expect_words(message([](auto& o) { o.nesterov = true; }), {"--nesterov", "sgd"});
  expect_words(message([](auto& o) { o.schedule = "step"; }), {"--lr-every"});
  expect_words(message([](auto& o) {
                 o.model = "gpt";
                 o.heads = 7;
               }),
               {"--heads", "7", "--width", "256"});
}

TEST(TrainOptions, AContinuedRunKeepsWhatDefinesIt) {
  TrainOptions before;
  before.lanes = 8;
  before.epochs = 3;
  before.lane_batch = 16;
  before.workers = 2;
  check_options(before);

  TrainOptions now;
  now.workers = 4;
  now.lane_batch = 16;
  continue_options(now, {"workers", "lane_batch"}, before);
  EXPECT_EQ(now.lanes, 8);
  EXPECT_EQ(now.epochs, 3);
  EXPECT_EQ(now.workers, 4);
  EXPECT_EQ(*now.lr, *before.lr);

  TrainOptions other;
  other.lane_batch = 32;
  expect_words(refusal([&] { continue_options(other, {"lane_batch"}, before); }),
               {"--lane-batch", "32", "16"});

  TrainOptions longer;  // only its length
  longer.steps = 500;
  continue_options(longer, {"steps"}, before);
  EXPECT_EQ(longer.steps, 500);
  EXPECT_EQ(longer.epochs, 0);

  before.schedule = "cosine";  // the rate of every step depends on the length
  TrainOptions cosine;
  cosine.epochs = 5;
  expect_words(refusal([&] { continue_options(cosine, {"epochs"}, before); }), {"--epochs", "5", "3"});
}

TEST_F(TrainConfig, TomlWithAndWithoutASection) {
  const Given given = load("a.toml",
                           "# a comment\nmodel = \"mlp\"\nlane-batch = 16\nlr = 1e-3\nno_augment = true\n"
                           "lanes = 8   # here too\n");
  EXPECT_EQ(options_.model, "mlp");
  EXPECT_EQ(options_.lane_batch, 16);
  EXPECT_EQ(*options_.lr, 1e-3);
  EXPECT_TRUE(options_.no_augment);
  EXPECT_EQ(given, (Given{"lane_batch", "lanes", "lr", "model", "no_augment"}));
  load("b.toml", "[train]\nepochs = 7\n");
  EXPECT_EQ(options_.epochs, 7);
}

TEST_F(TrainConfig, JsonAndFlagsWin) {
  options_.lanes = 4;
  const Given given = load("a.json", R"({"lanes": 8, "lane_batch": 16, "bucket_cap_mb": 2})", {"lanes"});
  EXPECT_EQ(options_.lanes, 4);
  EXPECT_EQ(options_.lane_batch, 16);
  EXPECT_EQ(options_.bucket_cap_mb, 2);
  EXPECT_TRUE(given.contains("lanes"));
}

TEST_F(TrainConfig, TheBucketSizeMayBeChosen) {
  EXPECT_EQ(TrainOptions().bucket_cap_mb, 0);
  for (const char* text : {"bucket_cap_mb = \"auto\"\n", "bucket-cap-mb = 0\n"}) {
    options_.bucket_cap_mb = 4;
    load("a.toml", text);
    EXPECT_EQ(options_.bucket_cap_mb, 0) << text;
    check_options(options_);
  }
  options_.bucket_cap_mb = 4;
  load("a.json", R"({"bucket_cap_mb": "auto"})");
  EXPECT_EQ(options_.bucket_cap_mb, 0);
  expect_words(refusal([&] { load("a.json", R"({"bucket_cap_mb": "large"})"); }),
               {"bucket_cap_mb", "large", "a number or auto"});
  expect_words(refusal([&] { load("a.json", R"({"first_bucket_mb": "auto"})"); }),
               {"first_bucket_mb", "auto"});
  options_.bucket_cap_mb = -1;
  expect_words(refusal([&] { check_options(options_); }), {"--bucket-cap-mb", "-1"});
}

TEST_F(TrainConfig, WhatIsNotUnderstoodIsRefusedByName) {
  expect_words(refusal([&] { load("a.toml", "lane_bach = 16\n"); }),
               {"a.toml", "lane_bach", "lane_batch", "optimizer", "Did you mean"});
  expect_words(refusal([&] { load("a.toml", "lanes = many\n"); }),
               {"a.toml", "lanes", "many", "a whole number"});
  expect_words(refusal([&] { load("a.toml", "lanes = 1.5\n"); }), {"lanes", "1.5", "a whole number"});
  expect_words(refusal([&] { load("a.toml", "seed = -1\n"); }), {"seed", "-1", "0 or more"});
  expect_words(refusal([&] { load("a.toml", "lanes = 1\nlanes = 2\n"); }), {"lanes", "one value", "2"});
  expect_words(refusal([&] { load("a.toml", "[optimizer]\nlr = 1\n"); }), {"[optimizer]", "[train]"});
  expect_words(refusal([&] { load("a.json", "{\"lanes\": \"8\"}"); }), {"a.json", "lanes", "a whole number"});
  expect_words(refusal([&] { load("a.json", "{\"lanes\": "); }), {"a.json"});
  expect_words(refusal([&] { load("a.json", "[1]"); }), {"a.json", "object"});
  expect_words(refusal([&] { load_config((folder_ / "none.toml").string(), options_, {}); }),
               {"none.toml", "read"});
}

}  // namespace
}  // namespace lockstep::cli
