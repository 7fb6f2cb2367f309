// Threads as ranks: what an exchange is told of a bucket, what the built-in ones leave, and one with a state.
#include "lockstep/grad/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "comm/thread_ranks.h"
#include "lockstep/comm/init.h"
#include "lockstep/grad/reducer.h"

namespace lockstep {
namespace {

using lockstep::testing::on_threads;

std::vector<NamedTensor> three() {
  std::vector<NamedTensor> list;
  for (const int count : {3, 40, 17})
    list.push_back({"p" + std::to_string(count), torch::zeros({count}).requires_grad_()});
  return list;
}

torch::Tensor slope(int rank, int step, std::int64_t count) {
  return torch::cos(torch::arange(count, torch::kFloat32) * 0.7f) * static_cast<float>(rank + 1 + step);
}

// Gradients come in the order of the list, which is not the one that buckets begin with.
void backward(const std::vector<NamedTensor>& parameters, int rank, int step) {
  torch::Tensor loss = torch::zeros({});
  for (auto at = parameters.rbegin(); at != parameters.rend(); ++at) {
    at->tensor.mutable_grad() = torch::Tensor();
    loss = loss + (at->tensor * slope(rank, step, at->tensor.numel())).sum();
  }
  loss.backward();
}

ReducerOptions with(Exchange exchange) {
  return {.bucket_bytes = 256, .first_bucket_bytes = 64, .exchange = std::move(exchange)};
}

torch::Tensor values_of(const Buffer& data) {
  return torch::from_blob(data.data, {static_cast<std::int64_t>(data.count)}).clone();
}

TEST(Exchange, IsToldWhatABucketHolds) {
  for (const int ranks : {1, 2, 3, 5}) {
    on_threads(thread_groups(ranks), [&](const Group& group) {
      std::vector<std::vector<Bucket>> steps;
      std::multiset<std::string> names;
      std::vector<NamedTensor> parameters = three();
      Reducer reducer(
          parameters, group,
          with({.name = "looks", .run = [&](const Bucket& bucket) {
                  EXPECT_EQ(bucket.divisor, ranks);
                  EXPECT_EQ(bucket.group.size(), ranks);
                  EXPECT_EQ(bucket.data.count % static_cast<std::size_t>(ranks), 0u);
                  EXPECT_NE(std::string(bucket.purpose).find("bucket "), std::string::npos);
                  for (const BucketTensor& tensor : bucket.tensors) {
                    const torch::Tensor expected = slope(group.rank(), static_cast<int>(steps.size()) - 1,
                                                         static_cast<std::int64_t>(tensor.count));
                    EXPECT_TRUE(torch::equal(values_of(bucket.data)
                                                 .narrow(0, static_cast<std::int64_t>(tensor.offset),
                                                         static_cast<std::int64_t>(tensor.count)),
                                             expected))
                        << tensor.name;
                    EXPECT_EQ(parameters[tensor.parameter].name, tensor.name);
                    names.insert(tensor.name);
                  }
                  steps.back().push_back(bucket);
                  return Work();
                }}));
      for (int step = 0; step < 3; ++step) {
        steps.emplace_back();
        names.clear();
        backward(parameters, group.rank(), step);
        EXPECT_EQ(names, (std::multiset<std::string>{"p17", "p3", "p40"}));
      }
      EXPECT_NE(steps[0][0].layout, steps[1][0].layout);  // laid out anew after the first exchange
      EXPECT_EQ(steps[1][0].layout, steps[2][0].layout);
    });
  }
}

TEST(Exchange, ReduceScatterLeavesEachRankItsPartOfTheMeans) {
  for (const int ranks : {1, 2, 3, 5}) {
    on_threads(thread_groups(ranks), [&](const Group& group) {
      std::vector<NamedTensor> whole = three(), part = three();
      ReducerOptions same_layout = with(all_reduce_exchange());
      same_layout.keep_layout = true;
      Reducer all(whole, group, same_layout);
      Reducer own(part, group, with(reduce_scatter_exchange()));
      for (int step = 0; step < 3; ++step) {
        backward(whole, group.rank(), step);
        backward(part, group.rank(), step);
        for (std::size_t b = 0; b < all.buckets().size(); ++b)
          EXPECT_TRUE(
              torch::equal(values_of(own_part(own.buckets()[b])), values_of(own_part(all.buckets()[b]))));
        for (std::size_t i = 0; i < part.size(); ++i) {
          EXPECT_TRUE(own.used(i));
          EXPECT_TRUE(whole[i].tensor.grad().defined());
          EXPECT_FALSE(part[i].tensor.grad().defined());  // most of it would not be the mean
        }
        own.end_step();  // they have been used
      }
    });
  }
}

// Nothing is left to be copied out of a bucket whose memory others get.
TEST(Exchange, ReduceScatterWritesTheOwnPartWhereItIsWanted) {
  on_threads(thread_groups(2), [](const Group& group) {
    const CommMemory memory = group.allocate(64), place = group.allocate(32);
    Bucket bucket{.data = {memory.data(), 16, DType::f32}, .divisor = 2, .group = group};
    for (int i = 0; i < 16; ++i) memory.as<float>()[i] = static_cast<float>(i * (group.rank() + 1));
    bucket.own = {place.data(), 8, DType::f32};
    reduce_scatter_exchange().run(bucket).wait();
    for (int i = 0; i < 8; ++i) {
      const int at = 8 * group.rank() + i;
      EXPECT_EQ(static_cast<const float*>(own_result(bucket).data)[i], 1.5f * static_cast<float>(at));
      EXPECT_EQ(place.as<float>()[i], 1.5f * static_cast<float>(at));
      EXPECT_EQ(memory.as<float>()[at], static_cast<float>(at * (group.rank() + 1)));
    }
  });
}

TEST(Exchange, NoneLeavesEveryRankItsOwn) {
  on_threads(thread_groups(2), [&](const Group& group) {
    std::vector<NamedTensor> parameters = three();
    Reducer reducer(parameters, group, with(no_exchange()));
    for (int step = 0; step < 3; ++step) {
      backward(parameters, group.rank(), step);
      for (const auto& [name, tensor] : parameters)
        EXPECT_TRUE(torch::equal(tensor.grad(), slope(group.rank(), step, tensor.numel())));
    }
  });
}

// Sends whole numbers, and what that leaves of a gradient with the next one.
Exchange whole_numbers(const Group& group) {
  auto rest = std::make_shared<Exchange::State>();
  const auto key = [](const std::string& name) { return "rest/" + name; };
  return {
      .name = "whole numbers",
      .run =
          [=](const Bucket& bucket) {
            const torch::Tensor flat =
                torch::from_blob(bucket.data.data, {static_cast<std::int64_t>(bucket.data.count)});
            for (const BucketTensor& tensor : bucket.tensors) {
              const torch::Tensor x = flat.narrow(0, static_cast<std::int64_t>(tensor.offset),
                                                  static_cast<std::int64_t>(tensor.count));
              torch::Tensor& left = (*rest)[key(tensor.name)];
              const torch::Tensor wanted = left.defined() ? x + left : x.clone();
              x.copy_(wanted.round());
              left = wanted - x;
            }
            return all_reduce_exchange().run(bucket);
          },
      .state =
          [=] {
            Exchange::State sum;
            for (const auto& [name, left] : *rest) {
              torch::Tensor total = left.clone();
              group.all_reduce(Buffer{total.data_ptr(), static_cast<std::size_t>(total.numel()), DType::f32});
              sum[name] = total;
            }
            return sum;
          },
      .load =
          [=](const Exchange::State& sum) {
            for (const auto& [name, total] : sum) (*rest)[name] = total / group.size();
          }};
}

// Nothing gets lost, neither when buckets are laid out anew nor when a run goes on with other workers: what
// was sent and what is left add up to what there was.
TEST(Exchange, StateIsKeptByParameter) {
  std::vector<torch::Tensor> there(3), sent(3);  // sums over steps and ranks
  Exchange::State state;
  int step = 0;
  for (const int ranks : {3, 2}) {
    const int begin = step;
    std::vector<std::vector<torch::Tensor>> means(3);
    Exchange::State saved;
    on_threads(thread_groups(ranks), [&](const Group& group) {
      std::vector<NamedTensor> parameters = three();
      const Exchange exchange = whole_numbers(group);
      exchange.load(state);
      Reducer reducer(parameters, group, with(exchange));
      for (int s = begin; s < begin + 4; ++s) {
        backward(parameters, group.rank(), s);
        if (group.rank() != 0) continue;
        for (std::size_t i = 0; i < 3; ++i) means[i].push_back(parameters[i].tensor.grad() * ranks);
      }
      const Exchange::State now = exchange.state();
      if (group.rank() == 0) saved = now;
    });
    step += 4;
    state = saved;
    for (std::size_t i = 0; i < 3; ++i)
      for (int s = begin; s < step; ++s) {
        const std::int64_t count = means[i][0].numel();
        for (int rank = 0; rank < ranks; ++rank)
          there[i] = there[i].defined() ? there[i] + slope(rank, s, count) : slope(rank, s, count);
        const torch::Tensor& mean = means[i][static_cast<std::size_t>(s - begin)];
        sent[i] = sent[i].defined() ? sent[i] + mean : mean;
      }
  }
  const char* const names[] = {"rest/p3", "rest/p40", "rest/p17"};
  ASSERT_EQ(state.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(torch::allclose(sent[i], there[i], 1e-4, 1e-4)) << "there was nothing to remember";
    EXPECT_TRUE(torch::allclose(sent[i] + state.at(names[i]), there[i], 1e-4, 1e-4)) << names[i];
  }
}

}  // namespace
}  // namespace lockstep
