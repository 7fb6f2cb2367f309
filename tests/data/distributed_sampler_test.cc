// The sampler for libtorch's own data loader: one global order, cut into equal parts.
#include "lockstep/data/distributed_sampler.h"

#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <sstream>

#include "comm/expect_error.h"

namespace lockstep {
namespace {

using testing::expect_error;
using Batches = std::vector<std::vector<std::size_t>>;

Batches rest_of(DistributedSampler& sampler, std::size_t batch) {
  Batches batches;
  while (auto one = sampler.next(batch)) batches.push_back(*one);
  return batches;
}

Batches epoch_of(std::int64_t size, int rank, int workers, std::size_t batch,
                 DistributedSamplerOptions options, std::int64_t epoch = 0) {
  DistributedSampler sampler(size, rank, workers, options);
  sampler.set_epoch(epoch);
  sampler.reset();
  return rest_of(sampler, batch);
}

// Worker by worker, step by step.
std::vector<std::size_t> all_of(const std::vector<Batches>& workers) {
  std::vector<std::size_t> all;
  for (std::size_t step = 0; step < workers[0].size(); ++step)
    for (const Batches& worker : workers)
      all.insert(all.end(), worker.at(step).begin(), worker.at(step).end());
  return all;
}

TEST(DistributedSampler, TheWorkersShareOneOrderAndHaveEquallyMuch) {
  for (const std::int64_t size : {1, 5, 16, 17, 31, 32, 33, 100})
    for (const int workers : {1, 2, 3, 4})
      for (const std::size_t batch : {1u, 2u, 5u})
        for (const LastStep last_step : {LastStep::short_, LastStep::drop, LastStep::wrap}) {
          SCOPED_TRACE(::testing::Message() << size << " examples, " << workers << " workers, batch " << batch
                                            << ", " << to_string(last_step));
          const std::int64_t step = workers * static_cast<std::int64_t>(batch);
          if (last_step == LastStep::drop && size < step) continue;
          std::vector<Batches> parts;
          for (int rank = 0; rank < workers; ++rank)
            parts.push_back(epoch_of(size, rank, workers, batch, {.seed = 3, .last_step = last_step}, 2));
          for (const Batches& part : parts) {
            ASSERT_EQ(part.size(), parts[0].size());
            for (std::size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i].size(), parts[0][i].size());
          }
          const auto order = epoch_order(size, 3, 2);
          const auto seen = all_of(parts);
          const auto count = std::ssize(seen);
          switch (last_step) {
            case LastStep::drop: EXPECT_EQ(count, size / step * step); break;
            case LastStep::wrap: EXPECT_EQ(count, (size + step - 1) / step * step); break;
            case LastStep::short_: EXPECT_GE(count, size); EXPECT_LT(count, size + workers);
          }
          for (std::size_t i = 0; i < seen.size(); ++i)
            ASSERT_EQ(static_cast<std::int64_t>(seen[i]), order[i % order.size()]);
        }
}

TEST(DistributedSampler, GivesWhatTheLanesOfALoaderGet) {
  const Sampler lanes(50, {.lanes = 4, .lane_batch = 3, .seed = 8});
  for (int rank = 0; rank < 4; ++rank) {
    const Batches batches = epoch_of(50, rank, 4, 3, {.seed = 8}, 1);
    ASSERT_EQ(std::ssize(batches), lanes.steps_per_epoch());
    for (std::int64_t step = 0; step < lanes.steps_per_epoch(); ++step) {
      const auto expected = lanes.lane(1, step, rank);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                             batches[static_cast<std::size_t>(step)].begin(),
                             batches[static_cast<std::size_t>(step)].end()));
    }
  }
}

TEST(DistributedSampler, EachLoopIsTheNextEpochUnlessToldOtherwise) {
  DistributedSampler sampler(20, 0, 2, {.seed = 1});
  std::vector<Batches> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    sampler.reset();
    EXPECT_EQ(sampler.epoch(), epoch);
    epochs.push_back(rest_of(sampler, 5));
    EXPECT_EQ(epochs.back(), epoch_of(20, 0, 2, 5, {.seed = 1}, epoch));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  sampler.set_epoch(1);
  sampler.reset();
  EXPECT_EQ(rest_of(sampler, 5), epochs[1]);
  sampler.reset();
  EXPECT_EQ(rest_of(sampler, 5), epochs[2]);
  sampler.set_epoch(1, 10);  // one step of two workers × 5
  sampler.reset();
  EXPECT_EQ(rest_of(sampler, 5), Batches(epochs[1].begin() + 1, epochs[1].end()));
  sampler.reset(6);  // a dataset that has shrunk
  EXPECT_EQ(rest_of(sampler, 3), epoch_of(6, 0, 2, 3, {.seed = 1}, 2));
}

// What `from` saves, loaded by a sampler of its own.
void hand_over(const DistributedSampler& from, DistributedSampler& to) {
  torch::serialize::OutputArchive out;
  from.save(out);
  std::stringstream bytes;
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  to.load(in);
}

TEST(DistributedSampler, GoesOnWhereItWasSavedWithAnyNumberOfWorkers) {
  const DistributedSamplerOptions options{.seed = UINT64_MAX - 1};
  const Batches whole = epoch_of(48, 0, 1, 8, options, 4);
  for (const int workers : {1, 2, 4}) {
    DistributedSampler one(48, 0, 1, options);
    one.set_epoch(4);
    one.reset();
    (void)one.next(8);
    (void)one.next(8);
    std::vector<Batches> parts;
    for (int rank = 0; rank < workers; ++rank) {
      DistributedSampler other(48, rank, workers, options);
      hand_over(one, other);
      other.reset();  // what a data loader does before it asks
      EXPECT_EQ(other.epoch(), 4);
      parts.push_back(rest_of(other, 8 / static_cast<std::size_t>(workers)));
    }
    EXPECT_EQ(all_of(parts), all_of({Batches(whole.begin() + 2, whole.end())}));
  }
  DistributedSampler ended(48, 0, 1, options), next(48, 0, 1, options);
  (void)rest_of(ended, 8);
  hand_over(ended, next);
  next.reset();
  EXPECT_EQ(next.epoch(), 1) << "the epoch was through";
  EXPECT_EQ(rest_of(next, 8), epoch_of(48, 0, 1, 8, options, 1));
}

TEST(DistributedSampler, NamesWhatIsWrong) {
  expect_error<UsageError>([] { DistributedSampler(0, 0, 1); }, {"0 examples"});
  expect_error<UsageError>([] { DistributedSampler(5, 2, 2); }, {"worker 2 of 2"});
  DistributedSampler sampler(5, 0, 2, {.seed = 1, .last_step = LastStep::drop});
  expect_error<UsageError>([&] { (void)sampler.next(3); },
                           {"5 examples", "2 workers × 3", "6 examples or more", "short or wrap"});
  expect_error<UsageError>([&] { (void)sampler.next(0); }, {"a batch of 0"});
  expect_error<UsageError>([&] { sampler.set_epoch(-1); }, {"epoch -1"});
  expect_error<UsageError>([&] { sampler.reset(0); }, {"0 examples"});
  DistributedSampler larger(6, 0, 2, {.seed = 1}), other(5, 0, 2, {.seed = 2});
  expect_error<UsageError>([&] { hand_over(sampler, larger); }, {"size is 6", "archive's 5"});
  expect_error<UsageError>([&] { hand_over(sampler, other); }, {"seed is 2", "archive's 1"});
  torch::serialize::OutputArchive out;
  out.write("size", torch::tensor(std::int64_t{5}), true);
  std::stringstream bytes;
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  expect_error<UsageError>([&] { sampler.load(in); }, {"'seed'", "save wrote"});
}

struct Numbers : torch::data::datasets::Dataset<Numbers> {
  torch::data::Example<> get(std::size_t index) override {
    const auto number = torch::tensor(static_cast<std::int64_t>(index));
    return {number, number};
  }
  c10::optional<std::size_t> size() const override { return 21; }
};

// Through libtorch's loader with threads of its own; set_epoch() of the sampler that the loader copied.
TEST(DistributedSampler, FitsTorchsDataLoader) {
  for (const LastStep last_step : {LastStep::short_, LastStep::drop, LastStep::wrap})
    for (int rank = 0; rank < 2; ++rank) {
      const DistributedSamplerOptions options{.seed = 5, .last_step = last_step};
      DistributedSampler sampler(21, rank, 2, options);
      const auto loader =
          torch::data::make_data_loader(Numbers().map(torch::data::transforms::Stack<>()), sampler,
                                        torch::data::DataLoaderOptions().batch_size(4).workers(2));
      const auto loop = [&] {
        Batches seen;
        for (auto& batch : *loader) {
          const auto data = batch.data.contiguous();
          seen.emplace_back(data.data_ptr<std::int64_t>(), data.data_ptr<std::int64_t>() + data.numel());
        }
        return seen;
      };
      for (const std::int64_t epoch : {0, 1})
        EXPECT_EQ(loop(), epoch_of(21, rank, 2, 4, options, epoch)) << to_string(last_step) << epoch;
      sampler.set_epoch(7);
      EXPECT_EQ(loop(), epoch_of(21, rank, 2, 4, options, 7));
    }
}

}  // namespace
}  // namespace lockstep
