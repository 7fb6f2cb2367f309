// What the optimizers promise beside their arithmetic: order of calls, state, and refusals.
#include "lockstep/optim/optimizer.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "grad/whole_slices.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

torch::Tensor parameter(std::vector<std::int64_t> sizes) {
  return torch::ones(sizes).set_requires_grad(true);
}

// Hands out gradients only in synchronize(), and writes down who called what.
class Source : public GradientSource {
 public:
  std::vector<NamedTensor> parameters() const override { return {{"w", weight}, {"b", bias}}; }
  std::span<const Slice> slices() override { return slices_.now(); }
  void synchronize() override {
    calls.push_back("synchronize");
    weight.mutable_grad() = torch::ones_like(weight.detach());
  }
  void watch_overflow(bool on) override { watched = on; }
  bool overflowed() const override { return watched && overflows; }
  void begin_updates() override { calls.push_back("begin_updates"); }
  void share_updates() override { calls.push_back("share_updates"); }
  void join(const std::vector<torch::Tensor>& parts, const Take& take) override { join_whole(parts, take); }
  torch::Tensor cut(std::size_t, const torch::Tensor& whole) const override { return whole; }
  void add_parts(std::span<double>) override {}
  void end_step() override {
    calls.push_back("end_step");
    weight_at_end = weight.detach().clone();
  }

  torch::Tensor weight = parameter({2, 3});
  torch::Tensor bias = parameter({3});
  torch::Tensor weight_at_end;
  bool watched = false;
  bool overflows = false;
  std::vector<std::string> calls;

 private:
  WholeSlices slices_{parameters()};
};

void expect_refusal(const std::function<void()>& call, const std::string& message) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected: " << message;
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()), message);
  }
}

TEST(Optimizer, SynchronizesFirstAndEndsTheStepLast) {
  Source source;
  SGD optimizer(source, {.lr = 0.25});
  optimizer.step();
  EXPECT_EQ(source.calls,
            (std::vector<std::string>{"synchronize", "begin_updates", "share_updates", "end_step"}));
  EXPECT_TRUE(torch::equal(source.weight, torch::full({2, 3}, 0.75)));
  EXPECT_TRUE(torch::equal(source.weight_at_end, source.weight));
  EXPECT_TRUE(torch::equal(source.bias, torch::ones({3})));  // had no gradient
}

TEST(Optimizer, ZeroGradMakesGradientsUndefined) {
  Source source;
  SGD optimizer(source);
  optimizer.step();
  ASSERT_TRUE(source.weight.grad().defined());
  optimizer.zero_grad();
  EXPECT_FALSE(source.weight.grad().defined());
  EXPECT_FALSE(source.bias.grad().defined());
}

TEST(Optimizer, UnusedParametersKeepTheirState) {
  Source source;
  source.bias.mutable_grad() = torch::ones({3});
  Adam optimizer(source, {});
  optimizer.step();
  const auto before = optimizer.state_dict();
  source.bias.mutable_grad().reset();
  optimizer.step();
  const auto after = optimizer.state_dict();
  EXPECT_EQ(after.at("step/w").item<std::int64_t>(), 2);
  EXPECT_EQ(after.at("step/b").item<std::int64_t>(), 1);
  EXPECT_TRUE(torch::equal(after.at("exp_avg/b"), before.at("exp_avg/b")));
  EXPECT_FALSE(torch::equal(after.at("exp_avg/w"), before.at("exp_avg/w")));
}

TEST(Optimizer, AGraphNoticesThatAParameterHasChanged) {
  Source source;
  SGD optimizer(source);
  const auto loss = (source.weight * source.weight).sum();
  optimizer.step();
  EXPECT_THROW(loss.backward(), c10::Error);
}

template <class T, class Options>
void expect_resumable(const Options& options, const std::vector<std::string>& names) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  Source one, two;
  T first(one, options), second(two, options);
  const auto gradients = [&](Source& source, int step) {
    source.bias.mutable_grad() = torch::full({3}, 0.1 * step + 0.3);
  };
  for (int step = 0; step < 3; ++step) {
    gradients(one, step);
    first.step();
  }
  const StateDict state = first.state_dict();
  std::vector<std::string> found;
  for (const auto& [name, tensor] : state) found.push_back(name);
  EXPECT_EQ(found, names);
  const torch::NoGradGuard no_grad;
  two.weight.copy_(one.weight);
  two.bias.copy_(one.bias);
  second.load_state_dict(state);
  for (int step = 3; step < 6; ++step) {
    gradients(one, step);
    gradients(two, step);
    first.step();
    second.step();
  }
  EXPECT_TRUE(torch::equal(one.weight, two.weight));
  EXPECT_TRUE(torch::equal(one.bias, two.bias));
  // The dictionary is a copy: the steps since have not changed it.
  EXPECT_EQ(state.at("step/w").item<std::int64_t>(), 3);
  if (state.contains("exp_avg/b")) {
    EXPECT_FALSE(torch::equal(state.at("exp_avg/b"), first.state_dict().at("exp_avg/b")));
  }
}

TEST(Optimizer, ResumesFromItsState) {
  expect_resumable<SGD>(SGDOptions{.lr = 0.1}, {"step/b", "step/w"});
  expect_resumable<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5},
                        {"momentum_buffer/b", "momentum_buffer/w", "step/b", "step/w"});
  expect_resumable<Adam>(AdamOptions{},
                         {"exp_avg/b", "exp_avg/w", "exp_avg_sq/b", "exp_avg_sq/w", "step/b", "step/w"});
  expect_resumable<AdamW>(AdamWOptions{},
                          {"exp_avg/b", "exp_avg/w", "exp_avg_sq/b", "exp_avg_sq/w", "step/b", "step/w"});
}

// Sixteen bits of a parameter beside the same one in f32, with the gradients that both can hold.
TEST(MasterWeights, GoTheWayOfAnF32Parameter) {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    torch::Tensor narrow = torch::linspace(-1, 1, 37).to(type).set_requires_grad(true);
    torch::Tensor wide = narrow.detach().to(torch::kFloat32).set_requires_grad(true);
    AdamW ours({{"w", narrow}}, {.lr = 1e-4, .master_weights = MasterWeights::f32});
    AdamW reference({{"w", wide}}, {.lr = 1e-4});
    EXPECT_EQ(ours.state_bytes(), 37u * 12);
    for (int step = 0; step < 20; ++step) {
      const torch::Tensor gradient = torch::sin(torch::arange(37) + step).to(type);
      wide.mutable_grad() = gradient.to(torch::kFloat32);
      narrow.mutable_grad() = gradient * 256;
      reference.step();
      ours.step(256);
    }
    const StateDict state = ours.state_dict();
    EXPECT_TRUE(torch::equal(state.at("master/w"), wide.detach()));
    EXPECT_TRUE(torch::equal(state.at("exp_avg_sq/w"), reference.state_dict().at("exp_avg_sq/w")));
    EXPECT_TRUE(torch::equal(narrow.detach(), wide.detach().to(type)));
    // Steps of 1e-4 are lost on numbers near one without a master.
    EXPECT_FALSE(torch::equal(narrow.detach(), torch::linspace(-1, 1, 37).to(type)));
  }
}

TEST(MasterWeights, AreLoadedAndMustBeThere) {
  const auto make = [] { return torch::full({5}, 0.5).to(torch::kBFloat16).set_requires_grad(true); };
  torch::Tensor one = make(), two = make();
  SGD first({{"w", one}}, {.lr = 1e-4, .master_weights = MasterWeights::f32});
  SGD second({{"w", two}}, {.lr = 1e-4, .master_weights = MasterWeights::f32});
  const auto step = [](SGD& optimizer, torch::Tensor& w) {
    w.mutable_grad() = torch::ones_like(w.detach());
    optimizer.step();
  };
  for (int k = 0; k < 7; ++k) step(first, one);
  const StateDict state = first.state_dict();
  second.load_state_dict(state);
  {
    const torch::NoGradGuard no_grad;
    two.copy_(one);
  }
  for (int k = 0; k < 7; ++k) {
    step(first, one);
    step(second, two);
  }
  EXPECT_TRUE(torch::equal(one, two));
  EXPECT_TRUE(torch::equal(first.state_dict().at("master/w"), second.state_dict().at("master/w")));
  StateDict without = state;
  without.erase("master/w");
  expect_refusal([&] { second.load_state_dict(without); }, "SGD: state dict: 'master/w' is missing");
  SGD plain({{"w", one}}, {.lr = 1e-4});
  expect_refusal([&] { plain.load_state_dict(state); },
                 "SGD: state dict: 'master/w' belongs to no parameter of this optimizer");
}

// Weights that were loaded after the optimizer was made are not overwritten by what the masters held before.
TEST(MasterWeights, FollowWhatOthersWrite) {
  torch::Tensor w = torch::full({4}, 0.5).to(torch::kBFloat16).set_requires_grad(true);
  SGD optimizer({{"w", w}}, {.lr = 1e-4, .master_weights = MasterWeights::f32});
  const auto step = [&] {
    w.mutable_grad() = torch::ones_like(w.detach());
    optimizer.step();
  };
  step();
  {
    const torch::NoGradGuard no_grad;
    w[0] = 2;
  }
  step();
  const torch::Tensor masters = optimizer.state_dict().at("master/w");
  EXPECT_EQ(masters[0].item<float>(), 2.0f - 1e-4f);
  EXPECT_EQ(masters[1].item<float>(), 0.5f - 1e-4f - 1e-4f);
}

TEST(Optimizer, RefusesAScaleThatIsNone) {
  Source source;
  SGD optimizer(source);
  expect_refusal([&] { optimizer.step(0); }, "SGD: gradient_scale is 0; accepted: more than 0, finite");
}

TEST(Optimizer, RefusesAStateThatDoesNotFitAndKeepsItsOwn) {
  Source source;
  AdamW optimizer(source, {});
  optimizer.step();
  const auto good = optimizer.state_dict();
  const auto refuses = [&](const std::function<void(StateDict&)>& spoil, const std::string& message) {
    StateDict bad = AdamW(source, {}).state_dict();  // zeros: a partial load would show
    spoil(bad);
    expect_refusal([&] { optimizer.load_state_dict(bad); }, message);
    const auto now = optimizer.state_dict();
    for (const auto& [name, tensor] : good) EXPECT_TRUE(torch::equal(tensor, now.at(name))) << name;
  };
  refuses([](StateDict& bad) { bad.erase("exp_avg_sq/w"); }, "AdamW: state dict: 'exp_avg_sq/w' is missing");
  refuses([](StateDict& bad) { bad.erase("step/b"); }, "AdamW: state dict: 'step/b' is missing");
  refuses([](StateDict& bad) { bad["exp_avg/x"] = torch::zeros({1}); },
          "AdamW: state dict: 'exp_avg/x' belongs to no parameter of this optimizer");
  refuses(
      [](StateDict& bad) {
        bad["exp_avg/w"] = torch::zeros({3, 2});
      },
      "AdamW: state dict: 'exp_avg/w' is Float [3, 2]; accepted: Float [2, 3]");
  refuses(
      [](StateDict& bad) {
        bad["exp_avg/w"] = torch::zeros({2, 3}, torch::kDouble);
      },
      "AdamW: state dict: 'exp_avg/w' is Double [2, 3]; accepted: Float [2, 3]");
  refuses([](StateDict& bad) { bad["exp_avg/b"] = torch::Tensor(); },
          "AdamW: state dict: 'exp_avg/b' is undefined; accepted: Float [3]");
  refuses([](StateDict& bad) { bad["step/b"] = torch::full({}, -1, torch::kInt64); },
          "AdamW: state dict: 'step/b' is -1; accepted: 0 or more");
}

TEST(Optimizer, RefusesGradientsThatDoNotFitBeforeAnythingChanges) {
  const auto a = parameter({2}), b = parameter({2, 2});
  SGD optimizer({{"a", a}, {"b", b}}, {.lr = 1, .momentum = 0.9});
  const auto refuses = [&](const torch::Tensor& gradient, const std::string& message) {
    a.mutable_grad() = torch::ones({2});
    b.unsafeGetTensorImpl()->mutable_grad() = gradient;
    expect_refusal([&] { optimizer.step(); }, message);
    EXPECT_TRUE(torch::equal(a, torch::ones({2})));
    EXPECT_EQ(optimizer.state_dict().at("step/a").item<std::int64_t>(), 0);
  };
  refuses(torch::ones({2, 2}).to_sparse(),
          "SGD: the gradient of 'b' has layout Sparse; accepted: dense (Strided)");
  refuses(torch::ones({4}), "SGD: the gradient of 'b' has shape [4]; its parameter has [2, 2]");
  refuses(torch::ones({2, 2}, torch::kDouble),
          "SGD: the gradient of 'b' is Double on cpu; its parameter is Float on cpu; accepted: the "
          "parameter's type and device, which change before a strategy or an optimizer is made");
}

TEST(Optimizer, RefusesParametersThatItCannotTrain) {
  expect_refusal(
      [] {
        SGD({{"a", parameter({1})}, {"a", parameter({1})}});
      },
      "SGD: parameter 'a' is listed twice; accepted: each name once");
  expect_refusal([] { Adam({{"a", torch::Tensor()}}); }, "Adam: parameter 'a' is undefined");
  expect_refusal(
      [] {
        AdamW({{"ids", torch::ones({2}, torch::kInt64)}});
      },
      "AdamW: parameter 'ids' has type Long; accepted: Float, Double, Half, BFloat16");
  expect_refusal(
      [] {
        AdamW({{"s", torch::ones({2}).to_sparse()}});
      },
      "AdamW: parameter 's' has layout Sparse; accepted: dense (Strided)");
}

TEST(Optimizer, RefusesOptionsOutOfRange) {
  const std::vector<NamedTensor> list = {{"a", parameter({1})}};
  expect_refusal([&] { SGD(list, {.lr = -0.1}); }, "SGD: lr is -0.1; accepted: 0 or more, finite");
  expect_refusal([&] { SGD(list, {.lr = std::numeric_limits<double>::infinity()}); },
                 "SGD: lr is inf; accepted: 0 or more, finite");
  expect_refusal([&] { SGD(list, {.momentum = -1}); }, "SGD: momentum is -1; accepted: 0 or more, finite");
  expect_refusal([&] { SGD(list, {.weight_decay = -1}); },
                 "SGD: weight_decay is -1; accepted: 0 or more, finite");
  expect_refusal([&] { SGD(list, {.nesterov = true}); },
                 "SGD: momentum is 0; accepted: more than 0 with nesterov");
  expect_refusal([&] { SGD(list, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}); },
                 "SGD: dampening is 0.1; accepted: 0 with nesterov");
  expect_refusal([&] { Adam(list, {.beta1 = 1}); }, "Adam: beta1 is 1; accepted: 0 or more and less than 1");
  expect_refusal([&] { Adam(list, {.eps = -1}); }, "Adam: eps is -1; accepted: 0 or more, finite");
  expect_refusal([&] { AdamW(list, {.beta2 = -0.5}); },
                 "AdamW: beta2 is -0.5; accepted: 0 or more and less than 1");
  expect_refusal([&] { AdamW(list, {.weight_decay = -2}); },
                 "AdamW: weight_decay is -2; accepted: 0 or more, finite");
  SGD optimizer(list);
  expect_refusal([&] { optimizer.set_lr(-3); }, "SGD: lr is -3; accepted: 0 or more, finite");
  expect_refusal([&] { optimizer.add_group({.lr_scale = 2}); }, "SGD: a parameter group without `match`");
  const auto all = [](const std::string&) { return true; };
  expect_refusal([&] { optimizer.add_group({.match = all, .lr_scale = -1}); },
                 "SGD: lr_scale is -1; accepted: 0 or more, finite");
  expect_refusal([&] { optimizer.add_group({.match = all, .weight_decay = -1}); },
                 "SGD: weight_decay is -1; accepted: 0 or more, finite");
}

}  // namespace
}  // namespace lockstep
