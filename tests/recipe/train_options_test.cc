#include "recipe/train_options.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "recipe/config_file.h"

namespace lockstep {
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

TEST(TrainOptions, FlagsThatChangeNothingAreRefused) {
  const auto refusal_of = [](const TrainOptions& o, const Given& given) {
    try {
      check_of_use(o, given);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto refusal = [&](const char* model, const char* optimizer, const char* schedule,
                           const Given& given) {
    TrainOptions o;
    o.model = model;
    o.optimizer = optimizer;
    o.schedule = schedule;
    return refusal_of(o, given);
  };
  EXPECT_EQ(refusal("mlp", "adamw", "constant", {"blocks"}),
            "--blocks changes nothing with --model mlp; accepted: with --model gpt");
  EXPECT_EQ(refusal("resnet18", "adamw", "constant", {"width"}),
            "--width changes nothing with --model resnet18; accepted: with --model gpt or mlp");
  EXPECT_EQ(refusal("mlp", "adamw", "constant", {"momentum"}),
            "--momentum changes nothing with --optimizer adamw; accepted: with --optimizer sgd, torch-sgd or "
            "lars");
  EXPECT_EQ(refusal("mlp", "lamb", "linear", {"trust_coefficient"}),
            "--trust-coefficient changes nothing with --optimizer lamb; accepted: with --optimizer lars");
  EXPECT_EQ(
      refusal("mlp", "torch-sgd", "linear", {"exclude"}),
      "--exclude changes nothing with --optimizer torch-sgd; accepted: with --optimizer sgd, adam, adamw, "
      "lars, lamb or onebit-adam");
  EXPECT_EQ(refusal("mlp", "sgd", "linear", {"lr_power"}),
            "--lr-power changes nothing with --schedule linear; accepted: with --schedule poly");
  EXPECT_EQ(refusal("mlp", "sgd", "linear", {"lr_scaling"}),
            "--lr-scaling changes nothing without --base-lr; accepted: with --base-lr");
  EXPECT_EQ(refusal("mlp", "lars", "poly", {"momentum", "trust_clip", "exclude", "lr_power", "min_lr"}), "");
  EXPECT_EQ(refusal("mlp", "sgd", "cosine", {"lr_every"}),
            "--lr-every changes nothing with --schedule cosine; accepted: with --schedule step");
  EXPECT_EQ(refusal("gpt", "sgd", "cosine", {"blocks", "width", "heads", "momentum", "min_lr", "lr"}), "");
  EXPECT_EQ(refusal("mlp", "adamw", "step", {"layers", "width", "lr_every", "lr_factor"}), "");
  EXPECT_EQ(refusal("resnet50", "adamw", "constant", {"cifar_stem", "norm"}), "");
  EXPECT_EQ(refusal("mlp", "adamw", "constant", {"norm"}),
            "--norm changes nothing with --model mlp; accepted: with --model resnet18, resnet34 or resnet50");
  TrainOptions lanes;
  lanes.accumulate = 3;
  EXPECT_EQ(refusal_of(lanes, {"accumulate"}), "");
  lanes.lanes = 6;
  EXPECT_EQ(refusal_of(lanes, {"lanes"}), "");  // as a run's own recipe has them
  expect_words(refusal_of(lanes, {"accumulate", "lanes"}),
               {"--accumulate 3 changes nothing with --lanes 6", "one of them"});
  TrainOptions on_disk;
  on_disk.offload_what = "params";
  expect_words(refusal_of(on_disk, {"offload_what"}),
               {"--offload-what changes nothing with --offload none", "--offload FOLDER"});
  on_disk.offload_what = "state";
  EXPECT_EQ(refusal_of(on_disk, {"offload_what"}), "");
  for (const char* const name : {"loss_scale", "loss_scale_every"}) {
    expect_words(refusal("mlp", "adamw", "constant", {name}),
                 {"--loss-scale", "changes nothing with --loss-scaling auto", "--precision fp16"});
    TrainOptions narrow, scaled;
    narrow.precision = "fp16";
    scaled.loss_scaling = "on";
    check_of_use(narrow, {name});
    check_of_use(scaled, {name});
  }
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

TEST(TrainOptions, TheRateOfLargeBatchesIsFilledIn) {
  TrainOptions lars;
  lars.optimizer = "lars";
  check_options(lars);
  EXPECT_EQ(*lars.lr, 1);
  EXPECT_EQ(*lars.weight_decay, 1e-4);
  EXPECT_EQ(lars.exclude, "1-d");
  TrainOptions scaled;
  scaled.base_lr = 0.1;
  scaled.base_batch = 256;
  check_options(scaled);
  EXPECT_FALSE(scaled.lr);  // it follows when the lanes are known
  EXPECT_EQ(scaled.exclude, "none");

  // A run that goes on has the rate that its checkpoint says, in the way in which it says it.
  TrainOptions now;
  check_options(now);
  continue_options(now, {}, scaled);
  check_options(now);
  EXPECT_FALSE(now.lr);
  EXPECT_EQ(*now.base_lr, 0.1);
  TrainOptions other;
  other.lr = 0.2;
  expect_words(refusal([&] { continue_options(other, {"lr"}, scaled); }),
               {"--lr 0.2", "another run", "is none"});
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
  expect_words(message([](auto& o) { o.precision = "fp8"; }), {"--precision", "fp8", "fp32"});
  expect_words(message([](auto& o) { o.precision = "bf16", o.optimizer = "torch-adamw"; }),
               {"torch-adamw", "--precision bf16", "accepted: adamw"});
  expect_words(message([](auto& o) { o.loss_scaling = "on", o.optimizer = "torch-sgd"; }),
               {"torch-sgd", "--loss-scaling on", "accepted: sgd"});
  expect_words(message([](auto& o) { o.precision = "fp16", o.compress = "bf16"; }),
               {"--compress bf16", "--precision fp16", "16 bits"});
  expect_words(message([](auto& o) { o.compress = "bf16:warmup=3"; }),
               {"--compress bf16:warmup=3", "bf16 takes no options", "accepted: bf16 alone"});
  expect_words(message([](auto& o) { o.compress = "auto:0.1"; }),
               {"--compress auto:0.1", "auto takes no options", "accepted: auto alone"});
  expect_words(message([](auto& o) { o.compress = "*.bias=none,bf16"; }),
               {"--compress *.bias=none,bf16", "no rules beside it", "accepted: bf16 alone"});
  expect_words(message([](auto& o) { o.compress = "bf17"; }), {"--compress 'bf17'", "bf16", "topk"});
  expect_words(message([](auto& o) { o.loss_scaling = "yes"; }), {"--loss-scaling", "auto, on, off"});
  expect_words(message([](auto& o) { o.loss_scale = 0; }), {"--loss-scale '0'", "1e-06 to 1e+30"});
  expect_words(message([](auto& o) { o.loss_scale_every = 0; }), {"--loss-scale-every '0'", "1 to"});
#ifndef LOCKSTEP_HAS_TORCH_CUDA
  for (const char* const name : {"cuda", "cuda:1"})
    expect_words(message([&](auto& o) { o.device = name; }),
                 {"--device", name, "this build has no CUDA (accepted: cpu)"});
#endif
  for (const char* const name : {"gpu", "cuda:", "cuda:x", "cuda:1x", "CUDA", ""})
    expect_words(message([&](auto& o) { o.device = name; }), {"--device", "is not understood", "cpu"});
  expect_words(message([](auto& o) { o.deterministic = true; }), {"--deterministic", "--device cuda"});
  expect_words(message([](auto& o) { o.tf32 = true; }), {"--tf32", "--device cuda"});
  expect_words(message([](auto& o) { o.cuda_graph = true; }), {"--cuda-graph", "--device cuda"});
  expect_words(message([](auto& o) { o.gpu_memory_mb = 100; }), {"--gpu-memory-mb", "--device cuda"});
  expect_words(message([](auto& o) { o.offload = "host"; }), {"--offload host", "--device cuda", "a folder"});
  expect_words(message([](auto& o) { o.strategy = "zero4"; }),
               {"--strategy", "zero4", "ddp, zero1, zero2, zero3"});
  expect_words(message([](auto& o) { o.norm = "layer"; }), {"--norm", "layer", "batch, sync, group"});
  expect_words(message([](auto& o) {
                 o.norm = "sync";
                 o.last_step = "short";
               }),
               {"--last-step short", "--norm sync", "wrap or drop"});
  expect_words(message([](auto& o) { o.lane_batch = 0; }), {"--lane-batch", "0", "1 to"});
  expect_words(message([](auto& o) { o.last_step = "keep"; }), {"--last-step", "keep", "short, drop, wrap"});
  expect_words(message([](auto& o) { o.lr = -1; }), {"--lr", "-1"});
  expect_words(message([](auto& o) { o.lr = NAN; }), {"--lr", "nan"});
  expect_words(message([](auto& o) { o.lr = INFINITY; }), {"--lr", "inf"});
  expect_words(message([](auto& o) { o.base_lr = NAN; }), {"--base-lr", "nan"});
  expect_words(message([](auto& o) { o.lr = 0.1, o.min_lr = 0.2; }),
               {"--min-lr 0.2", "--lr 0.1", "0 to 0.1"});
  expect_words(message([](auto& o) { o.min_lr = 0.2; }), {"--min-lr 0.2", "--lr 0.0005"});
  for (double TrainOptions::*number :
       {&TrainOptions::dropout, &TrainOptions::label_smoothing, &TrainOptions::momentum,
        &TrainOptions::trust_coefficient, &TrainOptions::trust_clip, &TrainOptions::clip_norm,
        &TrainOptions::clip_value, &TrainOptions::warmup_epochs, &TrainOptions::min_lr,
        &TrainOptions::lr_power, &TrainOptions::lr_factor, &TrainOptions::bucket_cap_mb,
        &TrainOptions::first_bucket_mb, &TrainOptions::loss_scale})
    expect_words(message([&](auto& o) { o.*number = NAN; }), {"--", "'nan' is out of range", "accepted"});
  expect_words(message([](auto& o) { o.clip_norm = -1; }), {"--clip-norm", "-1", "or 0 (none)"});
  expect_words(message([](auto& o) { o.clip_norm = o.clip_value = 1; }),
               {"--clip-norm 1", "--clip-value 1", "one of them"});
  expect_words(message([](auto& o) { o.lr = 1, o.base_lr = 2, o.base_batch = 3; }),
               {"--lr 1", "--base-lr 2", "one of them"});
  expect_words(message([](auto& o) { o.base_lr = 2; }), {"--base-lr 2", "--base-batch"});
  expect_words(message([](auto& o) { o.base_batch = 2; }), {"--base-batch 2", "--base-lr"});
  expect_words(message([](auto& o) { o.warmup_steps = 8, o.steps = 7; }),
               {"--warmup-steps 8", "longer than the run", "7 at most"});
  expect_words(message([](auto& o) { o.warmup_epochs = 1.5; }),
               {"--warmup-epochs 1.5", "longer than the run", "1 at most"});
  expect_words(message([](auto& o) { o.warmup_steps = 1, o.warmup_epochs = 1; }),
               {"--warmup-steps 1", "--warmup-epochs 1", "one of them"});
  expect_words(message([](auto& o) { o.nesterov = true; }), {"--nesterov", "sgd"});
  expect_words(message([](auto& o) { o.schedule = "step"; }), {"--lr-every"});
  expect_words(message([](auto& o) {
                 o.model = "gpt";
                 o.heads = 7;
               }),
               {"--heads", "7", "--width", "256"});
}

TEST(TrainOptions, ANumberThatIsTooLongIsShownAsItWasWritten) {
  EXPECT_EQ(beyond_range("steps", "99999999999999999999"),
            "'99999999999999999999' is out of range; accepted: 1 to 1099511627776");
  EXPECT_EQ(beyond_range("lanes", "-99999999999999999999"),
            "'-99999999999999999999' is out of range; accepted: 0 to 1048576");
  EXPECT_EQ(beyond_range("seed", "18446744073709551616"),
            "'18446744073709551616' is out of range; accepted: 0 to 18446744073709551615");
  EXPECT_EQ(beyond_range("seed", "-1"), "'-1' is out of range; accepted: 0 to 18446744073709551615");
  for (const char* text : {"-", "-x", "--1"}) EXPECT_EQ(beyond_range("seed", text), "") << text;
  for (const char* text : {"5", "-5", "many", "", "1e30", "99999999999999999999x"})
    EXPECT_EQ(beyond_range("steps", text), "") << text;
  EXPECT_EQ(beyond_range("seed", "18446744073709551615"), "");
  EXPECT_EQ(beyond_range("lr", "99999999999999999999"), "");
  EXPECT_EQ(beyond_range("model", "99999999999999999999"), "");
}

TEST(TrainOptions, AWorkerNeedsALane) {
  TrainOptions o;
  check_lanes(o, 9);  // as many as it takes
  o.lanes = 8;
  check_lanes(o, 8);
  expect_words(refusal([&] { check_lanes(o, 9); }), {"--lanes 8", "9 workers", "9 or more"});
}

// Statistics over all workers are over one lane of each.
TEST(TrainOptions, ASynchronisedNormNeedsAWorkerForEveryLane) {
  TrainOptions o;
  o.norm = "sync";
  check_lanes(o, 4);
  o.lanes = 8;
  check_lanes(o, 8);
  check_lanes(o, 0);  // not known yet
  expect_words(refusal([&] { check_lanes(o, 4); }),
               {"--norm sync", "8 lanes on 4 workers", "accepted: -n 8"});
  o.lanes = 0;
  o.accumulate = 2;
  expect_words(refusal([&] { check_lanes(o, 2); }),
               {"--norm sync", "4 lanes on 2 workers", "accepted: -n 4"});
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

// Sums in any order have other bits, as Trainer says too.
TEST(TrainOptions, AContinuedRunKeepsItsOrderOfSums) {
  for (const char* const order : {"canonical", "any"}) {
    TrainOptions before;
    before.order = order;
    check_options(before);
    TrainOptions now;
    continue_options(now, {}, before);
    EXPECT_EQ(now.order, order);
    TrainOptions other;
    other.order = order == std::string("any") ? "canonical" : "any";
    expect_words(refusal([&] { continue_options(other, {"order"}, before); }),
                 {"--order", "would make another run", order, "--init"});
  }
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
  expect_words(refusal([&] { check_options(options_); }), {"--bucket-cap-mb", "-1", "or 0 (auto)"});
}

TEST_F(TrainConfig, WhatIsNotUnderstoodIsRefusedByName) {
  expect_words(refusal([&] { load("a.toml", "lane_bach = 16\n"); }),
               {"a.toml", "lane_bach", "lane_batch", "optimizer", "Did you mean"});
  expect_words(refusal([&] { load("a.toml", "lanes = many\n"); }),
               {"a.toml", "lanes", "many", "a whole number"});
  expect_words(refusal([&] { load("a.toml", "lanes = 1.5\n"); }), {"lanes", "1.5", "a whole number"});
  expect_words(refusal([&] { load("a.toml", "seed = -1\n"); }), {"line 1", "seed -1", "0 or more"});
  expect_words(refusal([&] { load("a.toml", "[optimizer]\nlr = 1\n"); }), {"[optimizer]", "[train]"});
  expect_words(refusal([&] { load("a.json", "{\"lanes\": \"8\"}"); }), {"a.json", "lanes", "a whole number"});
  expect_words(refusal([&] { load("a.json", "{\"lanes\": "); }), {"a.json"});
  expect_words(refusal([&] { load("a.json", "[1]"); }), {"a.json", "object"});
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  expect_words(refusal([&] { load("a.json", "{\"lanes\": " + deep + "}"); }),
               {"a.json", "nested deeper than 64"});
  expect_words(refusal([&] { load("a.toml", "lanes = " + deep); }), {"a.toml"});
  expect_words(refusal([&] { load("a.toml", "\xC3\xA9t\xC3\xA9 = 1\n"); }),
               {"a.toml line 1", "\xC3\xA9t\xC3\xA9"});
  expect_words(refusal([&] { load("a.toml", "lanes = 8 \xEF\xBB\xBD\n"); }), {"a.toml line 1"});
  expect_words(refusal([&] { load_config((folder_ / "none.toml").string(), options_, {}); }),
               {"none.toml", "can't be read: No such file"});
}

TEST_F(TrainConfig, QuotesCommentsAndBlanks) {
  load("a.toml",
       "\xEF\xBB\xBF# a mark of UTF-8 in front\r\n"
       "  [train]  # the section\r\n"
       "data = \"a # b = \\\"c\\\"\"  # not a comment inside\r\n"
       "'out' = 'it\\is'\n"
       "model=\"mlp\"# right behind it\n"
       "no_augment = true\n"
       "seed = 7\n");
  EXPECT_EQ(options_.data, "a # b = \"c\"");
  EXPECT_EQ(options_.out, "it\\is");
  EXPECT_EQ(options_.model, "mlp");
  EXPECT_TRUE(options_.no_augment);
  EXPECT_EQ(options_.seed, 7U);
  load("b.toml", "seed = 8\ntrain.lanes = 3\n");
  EXPECT_EQ(options_.lanes, 3);
  load("c.toml", "train = { lanes = 4, seed = 9 }\n");
  EXPECT_EQ(options_.lanes, 4);
  EXPECT_EQ(options_.seed, 9U);
}

TEST_F(TrainConfig, OtherSpellingsAreToldHowTomlHasThem) {
  const auto message = [&](const std::string& text) { return refusal([&] { load("a.toml", text); }); };
  const auto expect_end = [&](const std::string& text, const std::string& end) {
    EXPECT_TRUE(message(text).ends_with("a.toml " + end)) << message(text);
  };
  expect_end("#\nmodel = mlp # a word\n", "line 2: text goes into quotes; accepted: model = \"mlp\"");
  expect_end("model=mlp", "line 1: text goes into quotes; accepted: model = \"mlp\"");
  expect_end("data = my folder\n", "line 1: text goes into quotes; accepted: data = \"my folder\"");
  expect_end("data = C:\\x\r\n", "line 1: text goes into quotes; accepted: data = 'C:\\x'");
  expect_end("data = ~/images\n", "line 1: text goes into quotes; accepted: data = \"~/images\"");
  expect_end("lanes = 8\nno_augment\n",
             "line 2: no_augment has no value; accepted: no_augment = true, a number, or \"text\"");
  expect_end("lanes =\n", "line 1: lanes has no value; accepted: lanes = true, a number, or \"text\"");
  expect_end("; a comment\nlanes = 8\n", "line 1: ';' begins no comment; accepted: # in its place");
  expect_end(
      "data = \"C:\\x\"\n",
      "line 1: data has a backslash in double quotes; accepted: in single quotes, where it stays as it is");
  expect_words(message("no_augment = yes\n"), {"line 1", "no_augment \"yes\"", "true or false"});
  expect_words(message("seed = \"7\"\n"), {"line 1", "seed \"7\"", "a whole number"});
  EXPECT_LT(message("data = " + std::string(100'000, 'x')).size(), 400U);
}

TEST_F(TrainConfig, TheLineIsNamed) {
  const auto message = [&](const std::string& text) { return refusal([&] { load("a.toml", text); }); };
  expect_words(message("lanes = 8\nmodel = \"mlp\n"), {"a.toml line 2", "model is not closed by a \""});
  expect_words(message("model = 'mlp\""), {"a.toml line 1", "not closed by a '"});
  expect_words(message("\"model = 1\n"), {"a.toml line 1", "model"});
  expect_words(message("\n\nlanes = -5\n"), {"a.toml line 3", "--lanes '-5'", "0 to 1048576"});
  expect_words(message("lanes = 99999999999999999999\n"), {"line 1", "lanes '99999999999999999999'", "0 to"});
  expect_words(message("#\nmodel = \"resnet17\"\n"), {"line 2", "resnet17", "resnet18"});
  expect_words(message("#\nlane_bach = 16\n"), {"line 2", "lane_bach", "lane_batch"});
  expect_words(message("#\nlanes = many\n"), {"line 2", "many", "a whole number"});
  expect_words(message("lanes = 1\n\nlanes = 2\n"), {"line 3", "lanes"});
  expect_words(message("lanes = 1\n\n[train]\nlanes = 2\n"), {"line 4", "lanes", "one value", "line 1"});
  expect_words(message("lanes = [1, 2]\n"), {"line 1", "lanes", "one value"});
  expect_words(message("data = \"a\" b\n"), {"line 1"});
  expect_words(message("[train\nlanes = 1\n"), {"line 1"});
  expect_words(message("seed = 1979-05-27\n"), {"line 1", "seed", "one value"});
  // The first line that is wrong, whatever its name.
  expect_words(message("model = \"x\"\ndata = 5\n"), {"line 1", "--model"});
  // What a flag has decided the file may get wrong.
  load("a.toml", "lanes = -5\n", {"lanes"});
}

TEST_F(TrainConfig, HostileFilesEnd) {
  const auto message = [&](const std::string& text) { return refusal([&] { load("a.toml", text); }); };
  EXPECT_LT(message("lanes = " + std::string(100'000, '[')).size(), 400U);
  EXPECT_LT(message("lanes" + std::string(100'000, '.') + "x = 1").size(), 1500U);
  EXPECT_LT(message('"' + std::string(100'000, 'x') + "\" = 1").size(), 1500U);
  expect_words(message(std::string((1 << 20) + 1, '#')), {"a.toml", "too large"});
  expect_words(refusal([&] { load_config("/dev/zero", options_, {}); }), {"/dev/zero", "too large"});
}

TEST_F(TrainConfig, WhatIsNoFileOfOptionsIsToldApart) {
  expect_words(refusal([&] { load_config(folder_.string(), options_, {}); }), {"is a folder"});
  expect_words(refusal([&] { load("a.toml", ""); }), {"a.toml", "is empty"});
  expect_words(refusal([&] { load("a.json", " \n"); }), {"a.json", "is empty"});
  for (const char* name : {"a.toml", "a.json"}) {
    const std::string control = refusal([&] { load(name, std::string("lanes\n\x01\x00\x02", 9)); });
    expect_words(control, {name, "is not text", "line 2", "0x01"});
    const std::string bytes = refusal([&] { load(name, "\xC3\x28\xFF"); });
    expect_words(bytes, {name, "is not text", "UTF-8"});
    EXPECT_TRUE(std::ranges::all_of(bytes, [](char c) { return c >= ' '; })) << bytes;
  }
}

TEST_F(TrainConfig, JsonSaysWhereItIsBroken) {
  const auto message = [&](const std::string& text) { return refusal([&] { load("a.json", text); }); };
  for (const char* text : {"{\"lanes\": 4,\n \"steps\":", "{\"lanes\": 1e999}", "{\"lanes\" 4}", "nonsense"})
    EXPECT_EQ(message(text).find("json.exception"), std::string::npos) << message(text);
  expect_words(message("{\"lanes\": 4,\n \"steps\":"), {"a.json: line 2, column", "unexpected end of input"});
  expect_words(message("{\"lanes\": 4, \"steps\": 2, \"lanes\": 8}"), {"a.json: lanes", "one value", "two"});
  expect_words(message("{\"train\": {\"lane-batch\": 4, \"lane_batch\": 8}}"), {"a.json: lane_batch", "two"});
  expect_words(message("{\"lanes\": -5}"), {"a.json: --lanes '-5'", "0 to 1048576"});
  EXPECT_LT(message("{\"lanes\": \"" + std::string(100000, 'x')).size(), 400U);
}

}  // namespace
}  // namespace lockstep
