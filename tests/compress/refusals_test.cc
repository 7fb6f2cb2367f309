// What is refused, in which words; and gradients that are not finite.
#include <gtest/gtest.h>

#include <limits>

#include "comm/thread_ranks.h"
#include "compress/lane_run.h"
#include "lockstep/base/error.h"
#include "lockstep/grad/reducer.h"

namespace lockstep {
namespace {

using lockstep::testing::LaneRun;
using lockstep::testing::on_threads;
using lockstep::testing::SmallNet;
using lockstep::testing::train_lanes;
using lockstep::testing::Trained;

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was refused";
}

void expect_words(const std::string& message, const std::string& words) {
  EXPECT_NE(message.find(words), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(CompressText, RefusesWhatIsNoMethod) {
  const std::pair<const char*, const char*> cases[] = {
      {"topp:0.01", "topp"},
      {"topk", "above 0 and at most 1"},
      {"topk:0", "above 0 and at most 1"},
      {"topk:0.01:warmup=-1", "warmup=-1; accepted: 0 to"},
      {"topk:0.01:color=red", "no option 'color'"},
      {"topk:0.01:ef=maybe", "accepted: on, off"},
      {"randk:0", "accepted: randk:RATIO, above 0"},
      {"randk:0.1:0.2", "accepted: randk:RATIO"},
      {"dgc:2", "accepted: dgc:RATIO"},
      {"dgc:0", "accepted: dgc:RATIO, above 0"},
      {"powersgd:rank=0", "rank=0; accepted: 1 to"},
      {"powersgd:rank=1.5", "whole numbers"},
      {"powersgd:4", "nothing takes '4'"},
      {"onebit:two-sided=on:ef=off", "needs ef=on"},
      {"", "names no method"},
      {"=topk:0.1", "names no parameter"},
      {"topk:0.1,fp8", "behind a method for all"},
      {"qsgd:0", "1 to 127 levels"},
      {"topk:1.5", "above 0 and at most 1"},
      {"powersgd:rank=-1", "rank=-1; accepted: 1 to"},
      {"onebit-adam:warmup=0", "warmup=0; accepted: 1 or more"},
      {"onebit-adam:beta1=1", "beta1=1; accepted: 0 to 0.999999"},
      {"onebit-adam:ef=off", "no option 'ef'"},
      {"a=onebit-adam:beta1=0.8,onebit-adam", "several beta1 or warmup; accepted: the same in all"},
      {"a=topk:0.1,onebit-adam", "topk:0.1 beside onebit-adam; accepted: onebit-adam, none"},
  };
  for (const auto& [text, words] : cases)
    expect_words(refusal([&] { (void)compressed({.method = text}); }), words);
}

std::string refused_for_net(const CompressOptions& options, int workers = 2) {
  return refusal([&] {
    on_threads(thread_groups(workers), [&](const Group& group) {
      SmallNet net;
      (void)make_strategy("ddp", net, group, {.exchange = compressed(options)});
    });
  });
}

TEST(Compress, RefusesRulesAndGroupsThatTheModelHasNot) {
  expect_words(refused_for_net({.method = "embed.*=topk:0.1:min=0,fp8:min=0"}),
               "'embed.*' matches no parameter");
  expect_words(refused_for_net({.method = "powersgd:rank=7:min=0"}),
               "rank 7 is above that of a matrix of 8 × 6");
  expect_words(refused_for_net({.method = "fp8:min=0", .groups = 3, .lanes = 8}),
               "accepted: a power of two, 8 at most");
  expect_words(refused_for_net({.method = "fp8:min=0", .groups = 16, .lanes = 8}), "16 subtrees of 8 lanes");
  expect_words(refused_for_net({.method = "topk:0.01"}), "none of its 6 parameters");
}

// A gradient of 16 bits is half as long: 0.3 of its elements with their indices are more than all of it.
TEST(Compress, ComparesWithTheGradientAsItTravels) {
  const auto refused = [](const std::string& method, ReducePrecision precision) {
    return refusal([&] {
      SmallNet net;
      net.to(torch::kBFloat16);
      (void)make_strategy("ddp", net, thread_groups(1)[0],
                          {.reduce_precision = precision, .exchange = compressed({.method = method})});
    });
  };
  expect_words(refused("topk:0.3:min=0", ReducePrecision::same), "none of its 6 parameters becomes smaller");
  expect_words(refused("powersgd:rank=2:min=0", ReducePrecision::same), "none of its 6 parameters");
  expect_words(refused("randk:0.7:min=0", ReducePrecision::same), "none of its 6 parameters");
  EXPECT_EQ(refused("topk:0.3:min=0", ReducePrecision::f32), "nothing was refused");
  EXPECT_EQ(refused("topk:0.2:min=0", ReducePrecision::same), "nothing was refused");
}

TEST(Compress, RefusesLanesThatAreNotItsOwn) {
  const auto backward = [](const CompressOptions& options,
                           const std::function<void(Strategy&, SmallNet&, int)>& body) {
    return refusal([&] {
      on_threads(thread_groups(2), [&](const Group& group) {
        SmallNet net;
        const auto model = make_strategy("ddp", net, group, {.exchange = compressed(options)});
        body(*model, net, group.rank());
      });
    });
  };
  expect_words(backward({.method = "fp8:min=0", .lanes = 8},
                        [](Strategy& model, SmallNet&, int rank) {
                          const auto scope = model.lane({.index = rank, .total_weight = 2});
                        }),
               "is for 8 lanes");
  expect_words(backward({.method = "fp8:min=0", .lanes = 8},
                        [](Strategy&, SmallNet& net, int) {
                          net.forward(lockstep::testing::small_batch(0, 0)).sum().backward();
                        }),
               "backward outside of a lane");
}

TEST(Compress, RefusesAStateThatDoesNotFit) {
  const auto run = [](const Group& group, const std::string& method, int groups, const Trained* before) {
    return train_lanes(
        group, LaneRun{.compress = {.method = method, .groups = groups, .lanes = 4}, .steps = 2}, before);
  };
  const Group one = thread_groups(1)[0];
  Trained before = run(one, "topk:0.1:min=0", 4, nullptr);
  expect_words(refusal([&] { run(one, "topk:0.1:min=0", 2, &before); }),
               "the state of the exchange is of 4 subtrees, this run's has 2; accepted: --compress-groups 4");
  expect_words(refusal([&] { run(one, "powersgd:rank=1:min=0", 4, &before); }), "does not remember");
  Trained lacking = before;
  lacking.state.erase("owed/1/first.weight");
  expect_words(refusal([&] { run(one, "topk:0.1:min=0", 4, &lacking); }), "lacks 'owed/1/first.weight'");
  before.state["owed/1/first.weight"] = torch::zeros({3});
  expect_words(refusal([&] { run(one, "topk:0.1:min=0", 4, &before); }),
               "'owed/1/first.weight' of [3]; accepted: [8, 6]");
}

// Methods that remember nothing of a subtree, too: their bits are of so many.
TEST(Compress, RefusesAStateOfAnotherNumberOfSubtrees) {
  for (const char* method : {"int8:min=0", "randk:0.2:min=0", "powersgd:rank=1:min=0:ef=off"}) {
    const auto run = [&](int groups, const Trained* before) {
      return train_lanes(thread_groups(1)[0],
                         LaneRun{.compress = {.method = method, .groups = groups, .lanes = 4}, .steps = 1},
                         before);
    };
    Trained before = run(4, nullptr);
    expect_words(
        refusal([&] { run(2, &before); }),
        "the state of the exchange is of 4 subtrees, this run's has 2; accepted: --compress-groups 4");
    EXPECT_EQ(before.state.erase("groups"), 1U);  // as it was saved before there was one
    EXPECT_EQ(refusal([&] { run(2, &before); }), "nothing was refused") << method;
  }
}

TEST(Compress, RefusesAStateThatGathersFewerThanItCan) {
  const auto run = [&](const Trained* before) {
    return train_lanes(thread_groups(1)[0],
                       LaneRun{.compress = {.method = "int8:min=0", .groups = 4, .lanes = 4}, .steps = 1},
                       before);
  };
  Trained before = run(nullptr);
  before.state.at("most_gathered").fill_(2);
  expect_words(refusal([&] { run(&before); }),
               "the state of the exchange has 'most_gathered' = 2; accepted: 4 or more");
}

// Two parameters of 64 elements, "a" and "b"; the first element of a's gradient on rank 1 is `first`.
void backward_of_two(const std::vector<NamedTensor>& parameters, int rank, float first) {
  torch::Tensor loss = torch::zeros({});
  for (const auto& [name, tensor] : parameters) {
    tensor.mutable_grad() = torch::Tensor();
    torch::Tensor g =
        torch::sin(torch::arange(64, torch::kFloat32) * (static_cast<float>(rank) + 1.3f)).view({8, 8});
    if (name == "a" && rank == 1) g[0][0] = first;
    loss = loss + (tensor * g).sum();
  }
  loss.backward();
}

// The parameter's mean is NaN on every rank, the others' are not, and the next step is as if it had not been.
TEST(Compress, PassesOnWhatIsNotFiniteAndForgetsIt) {
  for (const char* method :
       {"topk:0.1:min=0", "onebit:min=0", "int8:min=0", "int8:form=scattered:min=0:ef=on", "intsgd:min=0",
        "randk:0.2:min=0:ef=on", "powersgd:rank=1:min=0", "dgc:0.1:min=0", "onebit-adam:min=0"})
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
      on_threads(thread_groups(3), [&](const Group& group) {
        const Exchange exchange = compressed({.method = method})(Exchange::Leaves::everything);
        const std::vector<NamedTensor> parameters = {{"a", torch::ones({8, 8}).requires_grad_()},
                                                     {"b", torch::ones({8, 8}).requires_grad_()}};
        Reducer reducer(parameters, group, {.exchange = exchange});
        if (exchange.momenta) exchange.momenta->begin_momenta();
        const auto step = [&](float first) { backward_of_two(parameters, group.rank(), first); };
        step(0.5f);
        step(bad);
        EXPECT_TRUE(torch::isnan(parameters[0].tensor.grad()).all().item<bool>()) << method;
        EXPECT_TRUE(torch::isfinite(parameters[1].tensor.grad()).all().item<bool>()) << method;
        step(0.5f);
        for (const auto& [name, tensor] : parameters)
          EXPECT_TRUE(torch::isfinite(tensor.grad()).all().item<bool>()) << method << ", " << name;
        for (const auto& [name, tensor] : exchange.state())
          EXPECT_TRUE(torch::isfinite(tensor).all().item<bool>()) << method << ", " << name;
      });
}

// Under a watch such a step is not taken, and nothing of it is remembered: neither of the parameter whose
// gradient was not finite, nor of the others.
TEST(Compress, LeavesWhatIsRememberedAsItWasBeforeAStepThatIsVoid) {
  for (const char* method :
       {"topk:0.1:min=0", "onebit:min=0", "int8:min=0:ef=on", "int8:form=scattered:min=0:ef=on",
        "randk:0.2:min=0:ef=on", "powersgd:rank=1:min=0", "dgc:0.1:min=0", "onebit-adam:min=0"})
    on_threads(thread_groups(3), [&](const Group& group) {
      const Exchange exchange = compressed({.method = method})(Exchange::Leaves::everything);
      const std::vector<NamedTensor> parameters = {{"a", torch::ones({8, 8}).requires_grad_()},
                                                   {"b", torch::ones({8, 8}).requires_grad_()}};
      Reducer reducer(parameters, group, {.exchange = exchange});
      reducer.watch_overflow(true);
      if (exchange.momenta) exchange.momenta->begin_momenta();
      const auto step = [&](float first) { backward_of_two(parameters, group.rank(), first); };
      step(0.5f);
      step(0.5f);
      EXPECT_FALSE(reducer.overflowed()) << method;
      Exchange::State before = exchange.state();
      EXPECT_GT(before.size(), 2U) << method;
      step(std::numeric_limits<float>::infinity());
      EXPECT_TRUE(reducer.overflowed()) << method;
      Exchange::State after = exchange.state();
      EXPECT_EQ(before.erase("steps") + after.erase("steps"), 2U);
      for (const auto& [name, tensor] : before)
        EXPECT_TRUE(torch::equal(after.at(name), tensor)) << method << ", " << name;
      step(0.5f);
      bool moves = false;
      for (const auto& [name, tensor] : exchange.state())
        moves = moves || (name != "steps" && !torch::equal(after.at(name), tensor));
      EXPECT_TRUE(moves) << method;
    });
}

// Nor of a step that is given up when its buckets have left: one whose parameters have to have gradients, and
// one has none.
TEST(Compress, LeavesWhatIsRememberedAsItWasBeforeAStepThatIsGivenUp) {
  for (const char* method : {"topk:0.1:min=0", "int8:form=scattered:min=0:ef=on", "powersgd:rank=1:min=0",
                             "dgc:0.1:min=0", "onebit-adam:min=0"})
    on_threads(thread_groups(3), [&](const Group& group) {
      const Exchange exchange = compressed({.method = method})(Exchange::Leaves::everything);
      const std::vector<NamedTensor> parameters = {{"a", torch::ones({8, 8}).requires_grad_()},
                                                   {"b", torch::ones({8, 8}).requires_grad_()}};
      Reducer reducer(parameters, group, {.find_unused_parameters = false, .exchange = exchange});
      reducer.watch_overflow(true);
      if (exchange.momenta) exchange.momenta->begin_momenta();
      const auto expect_as = [&](Exchange::State before) {
        Exchange::State after = exchange.state();
        EXPECT_EQ(before.erase("steps") + after.erase("steps"), 2U);
        for (const auto& [name, tensor] : before)
          EXPECT_TRUE(torch::equal(after.at(name), tensor)) << method << ", " << name;
      };
      backward_of_two(parameters, group.rank(), 0.5f);
      backward_of_two(parameters, group.rank(), 0.25f);
      const Exchange::State before = exchange.state();
      reducer.reset();  // its means may have been used
      expect_as(before);
      EXPECT_THROW(parameters[0].tensor.square().sum().backward(), UsageError) << method;
      reducer.reset();
      expect_as(before);
      reducer.reset();  // in front of the next one: nothing has left
      expect_as(before);
    });
}

// The gradient is finite, its product with P is not.
TEST(Compress, ForgetsFactorsThatOverflow) {
  for (const char* method : {"powersgd:rank=1:min=0", "powersgd:rank=1:min=0:ef=off"})
    on_threads(thread_groups(2), [&](const Group& group) {
      const Exchange exchange = compressed({.method = method})(Exchange::Leaves::everything);
      const std::vector<NamedTensor> parameters = {{"a", torch::ones({8, 8}).requires_grad_()}};
      Reducer reducer(parameters, group, {.exchange = exchange});
      Exchange::State state = exchange.state();
      state["q/a"] = torch::full({1, 8}, 1e-3);
      exchange.load(state);
      const torch::Tensor& a = parameters[0].tensor;
      const auto step = [&](float first) {
        a.mutable_grad() = torch::Tensor();
        (a * (group.rank() == 0 ? first : 1.0f)).sum().backward();
        return a.grad();
      };
      EXPECT_TRUE(torch::isnan(step(3e38f)).all().item<bool>()) << method;
      for (const auto& [name, tensor] : exchange.state())
        EXPECT_TRUE(torch::isfinite(tensor).all().item<bool>()) << method << ", " << name;
      EXPECT_TRUE(torch::allclose(step(1), torch::ones({8, 8}))) << method;
    });
}

// Nobody had a gradient for it: it has none, and what is remembered of it stays.
TEST(Compress, LeavesUnusedParametersAlone) {
  for (const char* method : {"topk:0.1:min=0", "powersgd:rank=1:min=0", "onebit:min=0", "onebit-adam:min=0"})
    on_threads(thread_groups(2), [&](const Group& group) {
      const Exchange exchange = compressed({.method = method})(Exchange::Leaves::everything);
      const std::vector<NamedTensor> parameters = {{"a", torch::ones({8, 8}).requires_grad_()},
                                                   {"b", torch::ones({8, 8}).requires_grad_()}};
      Reducer reducer(parameters, group, {.exchange = exchange});
      if (exchange.momenta) exchange.momenta->begin_momenta();
      const auto step = [&](bool both, bool mine) {
        for (const auto& [name, tensor] : parameters) tensor.mutable_grad() = torch::Tensor();
        torch::Tensor g =
            torch::sin(torch::arange(64, torch::kFloat32) * (static_cast<float>(group.rank()) + 1.3f))
                .view({8, 8});
        torch::Tensor loss = (parameters[0].tensor * g).sum();
        if (both && mine) loss = loss + (parameters[1].tensor * g).sum();
        loss.backward();
      };
      step(true, true);
      const Exchange::State before = exchange.state();
      step(false, true);
      EXPECT_FALSE(parameters[1].tensor.grad().defined()) << method;
      const Exchange::State after = exchange.state();
      for (const auto& [name, tensor] : before)
        if (name.ends_with("/b")) {
          EXPECT_TRUE(torch::equal(tensor, after.at(name))) << method << ", " << name;
        }
      step(true, group.rank() == 0);  // one worker has it
      EXPECT_TRUE(parameters[1].tensor.grad().defined()) << method;
      const Exchange::State last = exchange.state();
      if (last.contains("owed/1/b")) {
        EXPECT_TRUE(torch::equal(last.at("owed/1/b"), before.at("owed/1/b"))) << method;
      }
    });
}

}  // namespace
}  // namespace lockstep
