// The same parameters, and the same memory of what was not sent, whoever carries a run's subtrees.
#include <gtest/gtest.h>

#include "comm/thread_ranks.h"
#include "compress/lane_run.h"
#include "lockstep/base/error.h"
#include "parallel/unit_models.h"

namespace lockstep {
namespace {

using lockstep::testing::equal;
using lockstep::testing::LaneRun;
using lockstep::testing::on_threads;
using lockstep::testing::train_lanes;
using lockstep::testing::Trained;

constexpr const char* kMethods[] = {"topk:0.1:min=0",
                                    "onebit:min=0",
                                    "int8:min=0",
                                    "fp8:min=0",
                                    "fp8:form=scattered:min=0",
                                    "int8:form=scattered:ef=on:min=0",
                                    "qsgd:16:min=0",
                                    "terngrad:min=0",
                                    "intsgd:min=0",
                                    "randk:0.2:ef=on:min=0",
                                    "powersgd:rank=1:min=0",
                                    "dgc:0.1:rampup=3:min=0:clip=1",
                                    "onebit-adam:warmup=2:min=0",
                                    "*.bias=none,onebit-adam:warmup=4:min=0:beta1=0.8",
                                    "*.bias=none,first.*=topk:0.2:min=0:warmup=2,powersgd:rank=2:min=0"};

std::vector<torch::Tensor> values_of(const std::map<std::string, torch::Tensor>& state) {
  std::vector<torch::Tensor> list;
  for (const auto& [name, tensor] : state) list.push_back(tensor);
  return list;
}

// On every rank alike.
Trained trained_by(int workers, const LaneRun& run, const Trained* before = nullptr) {
  std::vector<Trained> all(static_cast<std::size_t>(workers));
  on_threads(thread_groups(workers),
             [&](const Group& g) { all[static_cast<std::size_t>(g.rank())] = train_lanes(g, run, before); });
  for (const Trained& one : all) {
    EXPECT_TRUE(equal(one.tensors, all[0].tensors));
    EXPECT_TRUE(equal(values_of(one.state), values_of(all[0].state)));
    EXPECT_TRUE(equal(values_of(one.optimizer), values_of(all[0].optimizer)));
  }
  return all[0];
}

void expect_same(const Trained& a, const Trained& b, const std::string& what) {
  EXPECT_TRUE(equal(a.tensors, b.tensors)) << what;
  EXPECT_TRUE(equal(values_of(a.state), values_of(b.state))) << what << ": what is remembered";
  EXPECT_TRUE(equal(values_of(a.optimizer), values_of(b.optimizer))) << what << ": the optimizer's state";
  for (const torch::Tensor& tensor : a.tensors)
    EXPECT_TRUE(torch::isfinite(tensor).all().item<bool>()) << what;
}

class SameBits : public ::testing::TestWithParam<const char*> {};

TEST_P(SameBits, OnAnyNumberOfWorkers) {
  for (const int groups : {4, 8}) {
    LaneRun run{.compress = {.method = GetParam(), .groups = groups, .lanes = 8, .seed = 7}};
    const Trained one = trained_by(1, run);
    for (const int workers : {2, 3, 4, 8})
      expect_same(trained_by(workers, run), one,
                  std::to_string(workers) + " workers, " + std::to_string(groups));
    for (const char* strategy : {"zero1", "zero2"}) {
      run.strategy = strategy;
      expect_same(trained_by(3, run), one, std::string(strategy) + ", " + std::to_string(groups));
    }
  }
}

// 4 workers make three steps, 3 and then 8 workers go on from their checkpoint.
TEST_P(SameBits, WhenOtherWorkersGoOn) {
  LaneRun run{.compress = {.method = GetParam(), .groups = 4, .lanes = 8, .seed = 7}, .steps = 6};
  const Trained whole = trained_by(2, run);
  run.steps = 3;
  const Trained half = trained_by(4, run);
  run.first_step = 3;
  for (const int workers : {1, 3, 8})
    expect_same(trained_by(workers, run, &half), whole, std::to_string(workers) + " workers go on");
}

INSTANTIATE_TEST_SUITE_P(Methods, SameBits, ::testing::ValuesIn(kMethods));

// Lanes of unequal weight, workers and subtrees without any, and lanes that are no power of two.
TEST(SameBitsOf, ShortStepsAndOddNumbersOfLanes) {
  for (const int lanes : {5, 8})
    for (const char* method : {"topk:0.2:min=0", "powersgd:rank=1:min=0", "intsgd:min=0",
                               "onebit-adam:warmup=1:min=0", "fp8:form=scattered:min=0"}) {
      const LaneRun run{
          .compress = {.method = method, .groups = 4, .lanes = lanes}, .steps = 3, .lanes_in_last_step = 3};
      const Trained one = trained_by(1, run);
      for (const int workers : {2, 3, 5})
        expect_same(trained_by(workers, run), one,
                    std::to_string(lanes) + " lanes, " + method + ", " + std::to_string(workers));
    }
}

// Tensors of several blocks, which slices and the parts of zero1 and zero2 cut anywhere; several of them in a
// bucket, or one.
TEST(SameBitsOf, SlicesOfLargerTensors) {
  for (const double bucket_mb : {1e-4, 1.0})
    for (const char* method : {"fp8:min=0:form=scattered", "int8:min=0:form=scattered:ef=on",
                               "*.bias=none,fp8:e5m2:min=0:form=scattered"}) {
      LaneRun run{.compress = {.method = method, .groups = 4, .lanes = 8},
                  .steps = 3,
                  .lanes_in_last_step = 5,
                  .width = 397,
                  .bucket_mb = bucket_mb};
      const Trained one = trained_by(1, run);
      for (const char* strategy : {"ddp", "zero1", "zero2"})
        for (const int workers : {2, 3, 4, 8}) {
          run.strategy = strategy;
          expect_same(trained_by(workers, run), one,
                      std::string(method) + ", " + strategy + ", " + std::to_string(workers));
        }
    }
}

// Tensors of odd sizes, of one element, of f64 and without a gradient, in shards of every kind.
TEST(SameBitsOf, ScatteredInShards) {
  for (const char* method : {"fp8:form=scattered:min=0", "int8:min=0:ef=on"}) {
    testing::UnitRun run{.strategy = "ddp", .options = testing::plain_options(), .steps = 3};
    run.options.exchange = compressed({.method = method, .groups = 8, .lanes = 8});
    const std::vector<torch::Tensor> one = testing::train_units(run, 1);
    for (const int workers : {3, 6}) {
      for (const char* strategy : {"ddp", "zero2", "zero3"}) {
        run.strategy = strategy;
        EXPECT_TRUE(equal(testing::train_units(run, workers), one))
            << method << ", " << strategy << ", " << workers;
      }
      testing::UnitRun gathered = run;
      gathered.options.parameters = ParameterAccess::gathered;
      for (const int shared : {0, workers % 2 == 0 ? 2 : workers}) {
        gathered.options.shard_workers = shared;
        EXPECT_TRUE(equal(testing::train_units(gathered, workers), one))
            << method << ", in units, sets of " << shared << ", " << workers;
      }
    }
  }
}

// From 5 subtrees on, and not below: forms have bits of their own.
TEST(SameBitsOf, FormsByTheNumberOfSubtrees) {
  for (const std::string method : {"fp8:min=0", "int8:min=0"}) {
    LaneRun run{.compress = {.method = method, .lanes = 8}, .width = 200};
    const auto trained = [&](int groups, const std::string& form) {
      run.compress.groups = groups;
      run.compress.method = method + form;
      return trained_by(2, run).tensors;
    };
    EXPECT_TRUE(equal(trained(4, ""), trained(4, ":form=gathered"))) << method;
    EXPECT_TRUE(equal(trained(8, ""), trained(8, ":form=scattered"))) << method;
    EXPECT_FALSE(equal(trained(8, ""), trained(8, ":form=gathered"))) << method;
  }
}

// Checkpoints from before there were two forms know of none: the run goes on with the bits that it had,
// and so do those who go on from it. What was begun since is scattered.
TEST(SameBitsOf, WhatBeganGatheredGoesOnGathering) {
  for (const std::string method : {"fp8:min=0", "int8:min=0:ef=on"}) {
    LaneRun run{
        .compress = {.method = method + ":form=gathered", .groups = 8, .lanes = 8}, .steps = 6, .width = 200};
    const Trained gathered = trained_by(2, run);
    run.steps = 2;
    Trained begun = trained_by(2, run);
    begun.state.erase("most_gathered");
    run.compress.method = method;
    const Trained scattered = trained_by(2, run);
    EXPECT_FALSE(equal(begun.tensors, scattered.tensors)) << method;

    run.first_step = 2;
    const Trained next = trained_by(3, run, &begun);
    run.first_step = 4;
    const Trained last = trained_by(8, run, &next);
    EXPECT_TRUE(equal(last.tensors, gathered.tensors)) << method;

    run.first_step = 2;
    const Trained after = trained_by(3, run, &scattered);
    run.first_step = 0;
    run.steps = 4;
    expect_same(after, trained_by(1, run), method);
  }
}

TEST(SameBitsOf, GradientsOf16Bits) {
  for (const ReducePrecision precision : {ReducePrecision::same, ReducePrecision::f32})
    for (const char* method : {"topk:0.2:min=0", "powersgd:rank=1:min=0", "onebit-adam:warmup=2:min=0",
                               "int8:form=scattered:min=0"}) {
      const LaneRun run{.compress = {.method = method, .groups = 4, .lanes = 8},
                        .type = torch::kBFloat16,
                        .reduce_precision = precision};
      const Trained one = trained_by(1, run);
      for (const int workers : {3, 8}) expect_same(trained_by(workers, run), one, method);
    }
}

// Warm-up steps are those of a run that does not compress.
TEST(SameBitsOf, StepsOfAWarmUpAreDense) {
  LaneRun run{.compress = {.method = "topk:0.1:min=0:warmup=100", .groups = 4, .lanes = 8}};
  const Trained warm = trained_by(3, run);
  run.compress.method = "none";
  const Trained dense = trained_by(2, run);
  EXPECT_TRUE(equal(warm.tensors, dense.tensors));
  run.compress.method = "topk:0.1:min=0";
  EXPECT_FALSE(equal(trained_by(2, run).tensors, dense.tensors));
}

}  // namespace
}  // namespace lockstep
