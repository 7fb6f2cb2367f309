#include "lockstep/models/models.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/hash.h"
#include "lockstep/checkpoint/state.h"
#include "lockstep/models/cross_entropy.h"

namespace lockstep {
namespace {

std::int64_t count_parameters(const Model& model) {
  std::int64_t count = 0;
  for (const auto& parameter : model.parameters()) count += parameter.numel();
  return count;
}

template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

// Counts that torchvision's documentation gives for 1000 classes.
TEST(ResNet, HasTorchvisionsSize) {
  EXPECT_EQ(count_parameters(*make_resnet({.depth = 18, .classes = 1000})), 11'689'512);
  EXPECT_EQ(count_parameters(*make_resnet({.depth = 34, .classes = 1000})), 21'797'672);
  EXPECT_EQ(count_parameters(*make_resnet({.depth = 50, .classes = 1000})), 25'557'032);
}

TEST(ResNet, BuffersAreNamedAsInPython) {
  const auto model = make_resnet();
  const auto state = model_state(*model);
  for (const char* name : {"bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked",
                           "layer2.0.downsample.1.running_var", "layer4.1.bn2.num_batches_tracked"}) {
    EXPECT_TRUE(state.contains(name)) << name;
  }
  EXPECT_EQ(state.at("bn1.num_batches_tracked").dim(), 0);
  EXPECT_EQ(state.at("bn1.num_batches_tracked").scalar_type(), torch::kLong);
  EXPECT_EQ(state.size(), 122u);
}

TEST(ResNet, CifarStemKeepsTheResolution) {
  const auto plain = make_resnet();
  const auto cifar = make_resnet({.cifar_stem = true});
  EXPECT_EQ(model_state(*plain).at("conv1.weight").sizes(), (std::vector<std::int64_t>{64, 3, 7, 7}));
  EXPECT_EQ(model_state(*cifar).at("conv1.weight").sizes(), (std::vector<std::int64_t>{64, 3, 3, 3}));
  EXPECT_EQ(cifar->forward(torch::randn({2, 3, 8, 8})).sizes(), (std::vector<std::int64_t>{2, 10}));
}

// One set of names; GroupNorm alone keeps no statistics.
TEST(ResNet, HasAChoiceOfNorms) {
  const auto batch = model_state(*make_resnet());
  torch::manual_seed(1);
  const auto sync = make_resnet({.norm = ResNetNorm::sync});
  torch::manual_seed(1);
  const auto plain = make_resnet();
  EXPECT_EQ(params_sha256(*sync), params_sha256(*plain));
  const auto x = torch::randn({2, 3, 32, 32});
  sync->eval();
  plain->eval();
  EXPECT_TRUE(torch::equal(sync->forward(x), plain->forward(x)));
  for (const int depth : {18, 50}) {
    const auto group = make_resnet({.depth = depth, .norm = ResNetNorm::group});
    EXPECT_EQ(count_parameters(*group), count_parameters(*make_resnet({.depth = depth})));
    EXPECT_TRUE(group->buffers().empty());
    // A sample's output does not depend on the others.
    const auto both = group->forward(x);
    EXPECT_TRUE(torch::allclose(group->forward(x.narrow(0, 1, 1)), both.narrow(0, 1, 1), 1e-4, 1e-4));
  }
  for (const auto& [name, tensor] : model_state(*make_resnet({.norm = ResNetNorm::group})))
    EXPECT_EQ(batch.at(name).sizes(), tensor.sizes()) << name;
  EXPECT_EQ(refusal([] { make_resnet({.norm = static_cast<ResNetNorm>(9)}); }),
            "resnet: norm = 9; accepted: batch, sync, group");
}

TEST(ResNet, TrainsOneBatchDown) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  const auto model = make_resnet();
  const auto x = torch::randn({8, 3, 32, 32});
  const auto y = torch::arange(8);
  double first = 0;
  double last = 0;
  for (int step = 0; step < 6; ++step) {
    model->zero_grad();
    auto loss = torch::cross_entropy_loss(model->forward(x), y);
    loss.backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) {
      ASSERT_TRUE(parameter.grad().defined());
      parameter.sub_(0.01 * parameter.grad());
    }
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, 0.5 * first);
  EXPECT_EQ(model_state(*model).at("bn1.num_batches_tracked").item<std::int64_t>(), 6);
}

TEST(Gpt, HasThePeersSizeAndShape) {
  const auto model = make_gpt();
  EXPECT_EQ(count_parameters(*model), 4'903'168);
  EXPECT_TRUE(model->named_buffers().is_empty()) << "the mask must be in no checkpoint";
  const auto logits = make_gpt({.blocks = 1, .width = 16, .heads = 2, .context = 12, .vocabulary = 30})
                          ->forward(torch::zeros({3, 12}, torch::kLong));
  EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{3, 12, 30}));
}

TEST(Gpt, MayHaveAHeadWithoutBias) {
  const GptOptions with{.blocks = 1, .width = 16, .heads = 2, .context = 12, .vocabulary = 30};
  GptOptions without = with;
  without.head_bias = false;
  EXPECT_EQ(count_parameters(*make_gpt(with)) - count_parameters(*make_gpt(without)), 30);
  EXPECT_FALSE(model_state(*make_gpt(without)).contains("head.bias"));
}

// On the processor it is libtorch's, bit by bit, of tokens too; -100 does not count.
TEST(CrossEntropy, IsLibtorchsOnTheProcessor) {
  torch::manual_seed(4);
  const auto logits = torch::randn({3, 5, 7}).set_requires_grad(true);
  const auto target = torch::randint(0, 7, {3, 5}, torch::kLong);
  target[1][2] = -100;
  const auto rows = logits.detach().view({15, 7}).clone().set_requires_grad(true);
  const auto loss = cross_entropy(logits, target);
  const auto expected = at::cross_entropy_loss(rows, target.flatten());
  EXPECT_TRUE(torch::equal(loss, expected));
  EXPECT_TRUE(torch::equal(cross_entropy(rows, target.flatten()), expected));
  loss.backward();
  expected.backward();
  EXPECT_TRUE(torch::equal(logits.grad().view({15, 7}), rows.grad()));
}

// Smoothed by hand, in f64: the target is 1 - s of its class, and s / classes of every one.
TEST(CrossEntropy, SmoothsLabels) {
  torch::manual_seed(5);
  const auto logits = torch::randn({2, 6, 10}, torch::kDouble);
  const auto target = torch::randint(0, 10, {2, 6}, torch::kLong);
  const auto shares = at::one_hot(target.flatten(), 10).to(torch::kDouble) * 0.8 + 0.2 / 10;
  const auto expected = -(shares * torch::log_softmax(logits.flatten(0, 1), 1)).sum(1).mean();
  EXPECT_NEAR(cross_entropy(logits, target, 0.2).item<double>(), expected.item<double>(), 1e-12);
  EXPECT_TRUE(torch::equal(cross_entropy(logits, target, 0), cross_entropy(logits, target)));
  // As sure as it should be: the entropy of such a target, and no less.
  const auto sure = torch::log(shares);
  EXPECT_NEAR(cross_entropy(sure, target.flatten(), 0.2).item<double>(),
              -0.82 * std::log(0.82) - 0.18 * std::log(0.02), 1e-12);
  for (const double smoothing : {2.0, -0.1, std::nan("")})
    EXPECT_EQ(refusal([&] { cross_entropy(logits, target, smoothing); }),
              "cross_entropy: label_smoothing is " + c10::str(smoothing) + "; accepted: from 0 to 1");
}

TEST(Gpt, BeginsSmall) {
  torch::manual_seed(2);
  const auto model = make_gpt({.blocks = 8});
  const auto state = model_state(*model);
  EXPECT_NEAR(state.at("tok.weight").std().item<double>(), 0.02, 0.001);
  EXPECT_NEAR(state.at("blocks.3.attention.qkv.weight").std().item<double>(), 0.02, 0.001);
  EXPECT_NEAR(state.at("blocks.3.attention.out.weight").std().item<double>(), 0.005, 0.0005);
  EXPECT_NEAR(state.at("blocks.3.down.weight").std().item<double>(), 0.005, 0.0005);
  EXPECT_EQ(state.at("blocks.3.up.bias").abs().max().item<double>(), 0);
  const auto tokens = torch::randint(0, 256, {2, 128}, torch::kLong);
  const auto loss = torch::cross_entropy_loss(model->forward(tokens).flatten(0, 1), tokens.flatten());
  EXPECT_NEAR(loss.item<double>(), std::log(256.0), 0.2);
}

constexpr GptOptions kSmall{.blocks = 2, .width = 32, .heads = 4, .context = 10, .vocabulary = 20};

TEST(Gpt, TheFutureDoesNotReachThePast) {
  torch::manual_seed(3);
  const auto model = make_gpt(kSmall);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randint(0, 20, {2, 10}, torch::kLong);
  auto changed = x.clone();
  changed.index_put_({torch::indexing::Slice(), 6}, (x.select(1, 6) + 1) % 20);
  const auto difference = (model->forward(x) - model->forward(changed)).abs().amax({0, 2});
  EXPECT_EQ(difference.slice(0, 0, 6).max().item<double>(), 0);
  EXPECT_GT(difference.slice(0, 6).min().item<double>(), 0);
}

TEST(Gpt, AShorterInputGivesTheSamePrefix) {
  torch::manual_seed(4);
  const auto model = make_gpt(kSmall);
  const auto x = torch::randint(0, 20, {2, 10}, torch::kLong);
  EXPECT_TRUE(
      torch::allclose(model->forward(x).slice(1, 0, 7), model->forward(x.slice(1, 0, 7)), 1e-5, 1e-6));
  EXPECT_TRUE(torch::equal(model->forward(x), model->forward(x.to(torch::kUInt8))))
      << "bytes are tokens as well";
}

TEST(Gpt, SamplesDoNotMix) {
  torch::manual_seed(5);
  const auto model = make_gpt(kSmall);
  const auto x = torch::randint(0, 20, {3, 10}, torch::kLong);
  const auto alone = model->forward(x.slice(0, 1, 2));
  EXPECT_TRUE(torch::allclose(model->forward(x).slice(0, 1, 2), alone, 1e-5, 1e-6));
}

TEST(Gpt, DropoutFollowsTheGeneratorAndRestsInEvaluation) {
  GptOptions options = kSmall;
  options.dropout = 0.2;
  const auto model = make_gpt(options);
  const auto x = torch::randint(0, 20, {2, 10}, torch::kLong);
  const auto run = [&](std::uint64_t seed) {
    torch::manual_seed(seed);
    return model->forward(x);
  };
  EXPECT_TRUE(torch::equal(run(1), run(1)));
  EXPECT_FALSE(torch::equal(run(1), run(2)));
  model->eval();
  EXPECT_TRUE(torch::equal(run(1), run(2)));
}

TEST(Gpt, OptionsAndInputsAreChecked) {
  EXPECT_EQ(refusal([] { make_gpt({.width = 250}); }), "gpt: width = 250 is no multiple of heads = 8");
  EXPECT_NE(refusal([] { make_gpt({.dropout = 1}); }).find("accepted: 0 up to"), std::string::npos);
  EXPECT_EQ(refusal([] { make_gpt({.blocks = 0}); }), "gpt: blocks = 0; accepted: 1 or more");
  EXPECT_EQ(refusal([] {
              make_gpt(kSmall)->forward(torch::zeros({2, 11}, torch::kLong));
            }),
            "gpt: input of shape [2, 11]; accepted: [batch, 1 to 10] token numbers");
}

TEST(Mlp, IsThePeersByDefault) {
  const auto model = make_mlp();
  EXPECT_EQ(count_parameters(*model), 8 * (1024 * 1024 + 1024) + 1024 * 10 + 10);
  EXPECT_TRUE(model_state(*model).contains("14.weight"));
  EXPECT_TRUE(model_state(*model).contains("16.bias")) << "names of nn.Sequential";
  const auto small = make_mlp({.inputs = 12, .width = 5, .layers = 1, .classes = 3});
  EXPECT_EQ(small->forward(torch::randn({4, 3, 2, 2})).sizes(), (std::vector<std::int64_t>{4, 3}));
  EXPECT_EQ(make_mlp({.inputs = 12, .layers = 0})->parameters().size(), 2u)
      << "no hidden layer: a linear model";
}

TEST(MakeModel, KnowsEveryNameAndListsThem) {
  for (const auto& name : model_names()) EXPECT_NE(make_model(name), nullptr);
  ModelOptions options;
  options.resnet = {.classes = 7, .cifar_stem = true};
  EXPECT_EQ(model_state(*make_model("resnet34", options)).at("fc.bias").size(0), 7);
  EXPECT_EQ(refusal([] { make_model("vgg"); }),
            "model 'vgg'; accepted: resnet18, resnet34, resnet50, gpt, mlp");
  EXPECT_EQ(refusal([] { make_resnet({.depth = 20}); }), "resnet: depth = 20; accepted: 18, 34, 50");
}

TEST(Models, TheSeedDecidesTheWeights) {
  for (const auto& name : {"resnet18", "gpt", "mlp"}) {
    std::set<std::string> hashes;
    for (const int seed : {1, 1, 2}) {
      torch::manual_seed(static_cast<std::uint64_t>(seed));
      hashes.insert(params_sha256(*make_model(name)));
    }
    EXPECT_EQ(hashes.size(), 2u) << name;
  }
}

}  // namespace
}  // namespace lockstep
