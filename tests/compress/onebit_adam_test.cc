// 1-bit Adam: the exchange and the optimizer together, beside the paper's algorithm in f64.
#include "lockstep/optim/onebit_adam.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/thread_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/compress/compress.h"
#include "lockstep/grad/reducer.h"
#include "lockstep/optim/grad_scaler.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/strategies.h"

namespace lockstep {
namespace {

using lockstep::testing::on_threads;
using Numbers = std::vector<double>;

constexpr std::int64_t kLarge = 192, kSmall = 5;  // elements: the small one travels as it is
constexpr std::size_t kWorkers = 4;
constexpr int kDenseSteps = 10, kAllSteps = 50;
constexpr double kRate = 0.01, kDecay = 0.1, kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8;
constexpr std::size_t kUnseen = 7;  // an element without a gradient in the dense phase

struct TwoVectors : torch::nn::Module {
  torch::Tensor large = register_parameter("large", torch::linspace(-1, 1, kLarge));
  torch::Tensor small = register_parameter("small", torch::linspace(-1, 1, kSmall));
};

// In two steps one worker does not use the large one.
bool is_idle(std::size_t worker, int step, std::int64_t count) {
  return count == kLarge && worker == 2 && (step == 20 || step == 21);
}

Numbers gradient_of(std::size_t worker, int step, std::int64_t count) {
  Numbers g;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto x = static_cast<double>(i);
    const double noise = std::sin(x * (0.31 * static_cast<double>(worker) + 0.13 * step + 1.7));
    g.push_back(static_cast<float>(std::sin(0.7 * x + 0.05 * step) + 0.5 * noise));
  }
  if (count == kLarge && step < kDenseSteps) g[kUnseen] = 0;
  return is_idle(worker, step, count) ? Numbers(g.size(), 0) : g;
}

// Tang et al. 2021, algorithm 1: workers, server and parameter.
struct Algorithm {
  explicit Algorithm(std::int64_t count, bool compresses_)
      : compresses(compresses_),
        p(static_cast<std::size_t>(count)),
        m(p.size(), 0),
        v(p.size(), 0),
        server(p.size(), 0),
        errors(kWorkers, Numbers(p.size(), 0)) {
    for (std::size_t i = 0; i < p.size(); ++i)
      p[i] = static_cast<float>(-1 + 2.0 * static_cast<double>(i) / static_cast<double>(count - 1));
  }

  // Mean magnitude and sign; what is lost goes into the error.
  static Numbers compressed(Numbers x, Numbers& error) {
    double scale = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] += error[i];
      scale += std::abs(x[i]) / static_cast<double>(x.size());
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double sent = x[i] < 0 ? -scale : scale;
      error[i] = x[i] - sent;
      x[i] = sent;
    }
    return x;
  }

  void step(int t) {  // from 1 on
    std::vector<Numbers> g;
    for (std::size_t w = 0; w < kWorkers; ++w)
      g.push_back(gradient_of(w, t - 1, static_cast<std::int64_t>(p.size())));
    const bool dense = t <= kDenseSteps;
    Numbers next(p.size(), 0);
    for (std::size_t w = 0; w < kWorkers; ++w) {
      Numbers own(p.size());
      for (std::size_t i = 0; i < p.size(); ++i)
        own[i] = (kBeta1 * m[i] + (1 - kBeta1) * g[w][i]) / static_cast<double>(kWorkers);
      if (!dense && compresses && !is_idle(w, t - 1, kLarge)) own = compressed(own, errors[w]);
      for (std::size_t i = 0; i < p.size(); ++i) next[i] += own[i];
    }
    m = !dense && compresses ? compressed(next, server) : next;
    for (std::size_t i = 0; i < p.size(); ++i) {
      double mean = 0;
      for (std::size_t w = 0; w < kWorkers; ++w) mean += g[w][i] / static_cast<double>(kWorkers);
      if (dense) v[i] = kBeta2 * v[i] + (1 - kBeta2) * mean * mean;
      const double corrected = v[i] / (1 - std::pow(kBeta2, std::min(t, kDenseSteps)));
      p[i] *= 1 - kRate * kDecay;
      if (corrected > 0) p[i] -= kRate * m[i] / (1 - std::pow(kBeta1, t)) / (std::sqrt(corrected) + kEps);
    }
  }

  bool compresses;
  Numbers p, m, v, server;
  std::vector<Numbers> errors;
};

void expect_numbers(const torch::Tensor& found, const Numbers& expected, double tolerance,
                    const std::string& what) {
  ASSERT_EQ(found.numel(), static_cast<std::int64_t>(expected.size())) << what;
  double most = 1e-6;
  for (const double x : expected) most = std::max(most, std::abs(x));
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(found.flatten()[static_cast<std::int64_t>(i)].item<double>(), expected[i], tolerance * most)
        << what << ", element " << i;
}

Numbers negative(Numbers x) {
  for (double& each : x) each = -each;
  return x;
}

void take_step(TwoVectors& model, int worker, int step) {
  torch::Tensor loss = torch::zeros({});
  for (const torch::Tensor& tensor : {model.large, model.small}) {
    if (is_idle(static_cast<std::size_t>(worker), step, tensor.numel())) continue;
    loss = loss + (tensor * torch::tensor(gradient_of(static_cast<std::size_t>(worker), step, tensor.numel()))
                                .to(torch::kFloat32))
                      .sum();
  }
  loss.backward();
}

const char* const kMethod = "onebit-adam:warmup=10:min=64";

TEST(OneBitAdam, IsThePapersOverFiftySteps) {
  Algorithm large(kLarge, true), small(kSmall, false);
  for (int t = 1; t <= kAllSteps; ++t) {
    large.step(t);
    small.step(t);
  }
  for (const char* strategy : {"ddp", "zero1", "zero2", "zero3"})
    on_threads(thread_groups(kWorkers), [&](const Group& group) {
      TwoVectors model;
      const auto shared =
          make_strategy(strategy, model, group, {.exchange = compressed({.method = kMethod})});
      OneBitAdam optimizer(*shared, {.lr = kRate, .weight_decay = kDecay});
      for (int step = 0; step < kAllSteps; ++step) {
        take_step(model, group.rank(), step);
        optimizer.step();
        optimizer.zero_grad();
        EXPECT_EQ(shared->exchange().momenta->begun(), step + 1 >= kDenseSteps) << step;
      }
      expect_numbers(model.large, large.p, 1e-4, "parameter");
      expect_numbers(model.small, small.p, 1e-5, "parameter that travels as it is");
      const Exchange::State state = shared->exchange().state();
      EXPECT_EQ(state.size(), 8U);  // four errors, the server's, the momentum, two counts
      EXPECT_EQ(state.at("begun").item<std::int64_t>(), 1);
      EXPECT_EQ(state.at("steps").item<std::int64_t>(), kAllSteps);
      expect_numbers(state.at("momentum/large"), large.m, 1e-4, "momentum");
      expect_numbers(state.at("server/large"), negative(large.server), 1e-4, "the server's error");
      for (std::size_t w = 0; w < kWorkers; ++w)
        expect_numbers(state.at("owed/" + std::to_string(w) + "/large"), negative(large.errors[w]), 1e-4,
                       "a worker's error");
      const StateDict own = optimizer.state_dict();
      expect_numbers(own.at("exp_avg/large"), large.m, 1e-4, "exp_avg");
      expect_numbers(own.at("exp_avg/small"), small.m, 1e-5, "exp_avg that the optimizer made");
      EXPECT_EQ(own.at("step/large").item<std::int64_t>(), kAllSteps);
      const double correction = 1 - std::pow(kBeta2, kDenseSteps);
      const torch::Tensor variance = own.at("exp_avg_sq/large");
      for (std::int64_t i = 0; i < kLarge; ++i)
        if (i != static_cast<std::int64_t>(kUnseen)) {
          const double expected = large.v[static_cast<std::size_t>(i)] / correction;
          EXPECT_NEAR(variance[i].item<double>(), expected, 1e-5 * expected);
        }
      EXPECT_TRUE(std::isinf(variance[static_cast<std::int64_t>(kUnseen)].item<double>()));
    });
}

// As the run was when nothing was compressed yet.
TEST(OneBitAdam, IsAdamWInItsDensePhase) {
  on_threads(thread_groups(3), [](const Group& group) {
    TwoVectors one, other;
    DataParallel momenta(one, group, {.exchange = compressed({.method = kMethod})}), plain(other, group);
    OneBitAdam ours(momenta, {.lr = kRate, .weight_decay = kDecay});
    AdamW adamw(plain, {.lr = kRate, .weight_decay = kDecay});
    const auto step = [&](int number) {
      take_step(one, group.rank(), number);
      ours.step();
      ours.zero_grad();
      take_step(other, group.rank(), number);
      adamw.step();
      adamw.zero_grad();
    };
    for (int number = 0; number < kDenseSteps; ++number) {
      step(number);
      EXPECT_TRUE(torch::equal(one.large, other.large)) << number;
      EXPECT_TRUE(torch::equal(one.small, other.small)) << number;
    }
    step(kDenseSteps);
    EXPECT_FALSE(torch::equal(one.large, other.large));
    EXPECT_FALSE(torch::equal(one.small, other.small));
  });
}

// A step that was not taken (its loss was not finite) makes the dense phase longer, on every rank alike.
TEST(OneBitAdam, GoesOnDenselyUntilItsOptimizerHasTakenAStep) {
  on_threads(thread_groups(2), [](const Group& group) {
    TwoVectors model;
    DataParallel ddp(model, group, {.exchange = compressed({.method = "onebit-adam:warmup=2:min=64"})});
    OneBitAdam optimizer(ddp, {.lr = kRate});
    const std::shared_ptr<MomentumExchange> momenta = ddp.exchange().momenta;
    for (int step = 0; step < 4; ++step) {
      take_step(model, group.rank(), step);
      if (step == 1 || step == 2)
        EXPECT_FALSE(momenta->begun());
      else
        optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_TRUE(momenta->begun());
    EXPECT_TRUE(momenta->carries(0));
    EXPECT_FALSE(momenta->carries(1));
  });
}

// With a momentum and gradients of ones one bit says all of it: each of two sends (0.9 + 0.1) / 2. When the
// other's gradient is not finite the first keeps its gradient's 0.05 for the next step, and nothing else.
TEST(OneBitAdam, CountsItsMomentumOnceBehindAStepThatIsNotFinite) {
  on_threads(thread_groups(2), [](const Group& group) {
    const Exchange exchange = compressed({.method = "onebit-adam:min=0"})(Exchange::Leaves::everything);
    const std::vector<NamedTensor> parameters = {{"a", torch::ones({64}).requires_grad_()}};
    Reducer reducer(parameters, group, {.exchange = exchange});
    exchange.momenta->take(0, torch::ones({64}));
    exchange.momenta->begin_momenta();
    const torch::Tensor& a = parameters[0].tensor;
    const auto step = [&](float others) {
      a.mutable_grad() = torch::Tensor();
      (a * (group.rank() == 1 ? others : 1.0f)).sum().backward();
      return a.grad();
    };
    EXPECT_TRUE(torch::allclose(step(1), torch::ones({64})));
    EXPECT_TRUE(torch::isnan(step(std::numeric_limits<float>::quiet_NaN())).all().item<bool>());
    EXPECT_TRUE(torch::allclose(step(1), torch::full({64}, 1.05)));
  });
}

// In a loop without lanes theirs are other subtrees then, 2 and 3 of a run that has two: what is owed to them
// is lost, the momentum is not.
TEST(OneBitAdam, KeepsItsMomentumWhenFewerWorkersGoOn) {
  on_threads(thread_groups(kWorkers), [](const Group& world) {
    TwoVectors model;
    DataParallel ddp(model, world, {.exchange = compressed({.method = kMethod})});
    OneBitAdam optimizer(ddp, {.lr = kRate});
    const auto steps = [&](int first, int last) {
      for (int step = first; step < last; ++step) {
        take_step(model, world.rank(), step);
        optimizer.step();
        optimizer.zero_grad();
      }
    };
    steps(0, kDenseSteps + 3);
    const Exchange::State before = ddp.exchange().state();
    const Group staying = world.split(world.rank() >= 2 ? 0 : -1);
    if (!staying) return;
    ddp.rebind(staying);
    const Exchange::State after = ddp.exchange().state();
    EXPECT_EQ(after.at("begun").item<std::int64_t>(), 1);
    EXPECT_TRUE(torch::equal(after.at("momentum/large"), before.at("momentum/large")));
    EXPECT_TRUE(torch::equal(after.at("server/large"), before.at("server/large")));
    EXPECT_GT(before.at("owed/2/large").abs().max().item<float>(), 0);
    EXPECT_EQ(after.at("owed/0/large").abs().max().item<float>(), 0);
    steps(kDenseSteps + 3, kDenseSteps + 5);
    EXPECT_TRUE(torch::isfinite(model.large).all().item<bool>());
  });
}

template <class Body>
std::string refused(const Body& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(OneBitAdam, RefusesWhatItCannotBe) {
  const Group group = thread_groups(1)[0];
  TwoVectors model;
  {
    DataParallel plain(model, group);
    EXPECT_EQ(refused([&] { const OneBitAdam optimizer(plain); }),
              "OneBitAdam: the exchange 'all-reduce' carries no momenta; accepted: compressed({.method = "
              "\"onebit-adam\"})");
  }
  DataParallel ddp(model, group, {.exchange = compressed({.method = kMethod})});
  EXPECT_EQ(refused([&] { const OneBitAdam optimizer(ddp, {.beta2 = 1}); }),
            "OneBitAdam: beta2 is 1; accepted: 0 or more and less than 1");
  OneBitAdam optimizer(ddp);
  take_step(model, 0, 0);
  EXPECT_EQ(refused([&] { optimizer.step(1024); }),
            "OneBitAdam: gradient_scale is 1024; accepted: 1: a momentum outlives the scale of its loss");
}

TEST(OneBitAdam, RefusesAStateThatIsNoneOfIts) {
  const Group group = thread_groups(1)[0];
  TwoVectors model;
  DataParallel ddp(model, group, {.exchange = compressed({.method = kMethod})});
  Exchange::State state = ddp.exchange().state();
  state.erase("begun");
  EXPECT_EQ(refused([&] { ddp.exchange().load(state); }), "the state of the exchange lacks 'begun', 0 or 1");
  state = ddp.exchange().state();
  state.erase("momentum/large");
  EXPECT_NE(refused([&] { ddp.exchange().load(state); }).find("lacks 'momentum/large'"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
