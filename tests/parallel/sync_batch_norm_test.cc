// SyncBatchNorm against libtorch's BatchNorm on the joined batch, in one process. Threads as ranks.
#include "lockstep/parallel/sync_batch_norm.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <atomic>
#include <chrono>
#include <numeric>

#include "base/repeated.h"
#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "lockstep/parallel/units.h"
#include "parallel/norm_values.h"

namespace lockstep {
namespace {

using lockstep::testing::expect_close;
using lockstep::testing::expect_error;
using lockstep::testing::numbers;
using lockstep::testing::on_threads;
using lockstep::testing::say_repeated;
using torch::nn::BatchNormOptions;

constexpr std::int64_t kChannels = 3;

// What two forwards and backwards make of a batch norm: all that can be compared.
struct Outcome {
  std::vector<torch::Tensor> outputs, inputs;  // of each pass; inputs: their gradients
  torch::Tensor weight, bias;                  // gradients
  torch::Tensor running_mean, running_var, batches;
};

// `part`: of each pass's batch, first row and rows.
template <class Norm>
Outcome run(Norm& norm, const std::vector<std::int64_t>& joined, std::pair<std::int64_t, std::int64_t> part,
            torch::ScalarType type) {
  Outcome outcome;
  norm->to(type);
  {
    const torch::NoGradGuard no_grad;
    if (norm->weight.defined()) norm->weight.copy_(numbers({kChannels}, 1.1, type));
    if (norm->bias.defined()) norm->bias.copy_(numbers({kChannels}, 0.4, type));
  }
  // A mean far from 0 takes digits from f32, libtorch's own too.
  for (const double phase : {0.3, type == torch::kFloat64 ? 5.0 : 1.0}) {
    const auto cut = [&](const torch::Tensor& whole) {
      return whole.narrow(0, part.first, part.second).clone();
    };
    const torch::Tensor x = cut(numbers(joined, phase, type)).requires_grad_();
    const torch::Tensor y = norm->forward(x);
    EXPECT_EQ(y.scalar_type(), type);
    (torch::sin(y) * cut(numbers(joined, phase / 10, type))).sum().backward();  // gradients of order 1
    outcome.outputs.push_back(y.detach());
    outcome.inputs.push_back(x.grad());
  }
  if (norm->weight.defined()) {
    outcome.weight = norm->weight.grad();
    outcome.bias = norm->bias.grad();
  }
  outcome.running_mean = norm->running_mean;
  outcome.running_var = norm->running_var;
  outcome.batches = norm->num_batches_tracked;
  return outcome;
}

// BatchNorm1d takes two dimensions or three, 2d four and 3d five.
Outcome run_joined(const BatchNormOptions& options, const std::vector<std::int64_t>& shape,
                   torch::ScalarType type) {
  const std::pair<std::int64_t, std::int64_t> whole{0, shape[0]};
  if (shape.size() < 4) {
    torch::nn::BatchNorm1d norm(options);
    return run(norm, shape, whole, type);
  }
  if (shape.size() == 4) {
    torch::nn::BatchNorm2d norm(options);
    return run(norm, shape, whole, type);
  }
  torch::nn::BatchNorm3d norm(options);
  return run(norm, shape, whole, type);
}

// `rows`: of each rank. `inner`: the dimensions behind the channels.
void compare(const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& inner,
             const BatchNormOptions& options, torch::ScalarType type) {
  std::vector<std::int64_t> shape{std::accumulate(rows.begin(), rows.end(), std::int64_t{0}), kChannels};
  shape.insert(shape.end(), inner.begin(), inner.end());
  std::vector<Outcome> parts(rows.size());
  on_threads(thread_groups(static_cast<int>(rows.size())), [&](const Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    SyncBatchNorm norm(options, group);
    const std::int64_t first = std::accumulate(rows.begin(), rows.begin() + group.rank(), std::int64_t{0});
    parts[rank] = run(norm, shape, {first, rows[rank]}, type);
  });
  const Outcome whole = run_joined(options, shape, type);
  const double tolerance = type == torch::kFloat64 ? 1e-10 : 1e-5;
  const auto joined = [&](auto member, std::size_t pass) {
    std::vector<torch::Tensor> all;
    for (const Outcome& part : parts) all.push_back((part.*member)[pass]);
    return torch::cat(all);
  };
  for (const std::size_t pass : {0, 1}) {
    expect_close(joined(&Outcome::outputs, pass), whole.outputs[pass], tolerance, "outputs");
    expect_close(joined(&Outcome::inputs, pass), whole.inputs[pass], tolerance, "the inputs' gradients");
  }
  if (whole.weight.defined()) {
    torch::Tensor weight = torch::zeros_like(whole.weight), bias = torch::zeros_like(whole.bias);
    for (const Outcome& part : parts) {
      weight += part.weight;
      bias += part.bias;
    }
    expect_close(weight, whole.weight, tolerance, "the weight's gradient");
    expect_close(bias, whole.bias, tolerance, "the bias's gradient");
  }
  for (const Outcome& part : parts) {
    expect_close(part.running_mean, whole.running_mean, tolerance, "running_mean");
    expect_close(part.running_var, whole.running_var, tolerance, "running_var");
    expect_close(part.batches, whole.batches, 0, "num_batches_tracked");
    if (part.running_mean.defined()) {  // the same bits on every rank
      EXPECT_TRUE(torch::equal(part.running_mean, parts[0].running_mean));
      EXPECT_TRUE(torch::equal(part.running_var, parts[0].running_var));
    }
  }
}

using Rows = std::vector<std::int64_t>;

TEST(SyncBatchNorm, EqualsBatchNormOverTheJoinedBatch) {
  const BatchNormOptions options(kChannels);
  for (const auto type : {torch::kFloat64, torch::kFloat32})
    for (const Rows& rows : {Rows{4, 4}, Rows{1, 1}, Rows{5, 1, 2}, Rows{3, 0, 4}, Rows{0, 5},
                             Rows{0, 0, 0, 6}, Rows{2, 7, 0, 1}})
      for (const Rows& inner : {Rows{}, Rows{5}, Rows{2, 3}, Rows{2, 1, 3}}) {
        SCOPED_TRACE(::testing::PrintToString(rows) + " rows, behind the channels " +
                     ::testing::PrintToString(inner) + ", " + torch::toString(type));
        compare(rows, inner, options, type);
      }
}

TEST(SyncBatchNorm, TakesBatchNormsOptions) {
  for (const BatchNormOptions& options :
       {BatchNormOptions(kChannels).affine(false), BatchNormOptions(kChannels).momentum(c10::nullopt),
        BatchNormOptions(kChannels).track_running_stats(false),
        BatchNormOptions(kChannels).eps(0.5).momentum(0.7)})
    for (const Rows& rows : {Rows{2, 3}, Rows{3, 0, 2}}) compare(rows, {2, 2}, options, torch::kFloat64);
}

// Statistics of 16-bit inputs are those of the same numbers in f32.
// Channels last, slices, and gradients that are one number in many places.
TEST(SyncBatchNorm, TakesAnyLayout) {
  const auto layouts = std::vector<std::function<torch::Tensor(const torch::Tensor&)>>{
      [](const torch::Tensor& x) { return x.contiguous(torch::MemoryFormat::ChannelsLast); },
      [](const torch::Tensor& x) {
        return torch::stack({x, x}, -1).select(-1, 0);
      },
      [](const torch::Tensor& x) { return x.transpose(2, 3).contiguous().transpose(2, 3); }};
  const torch::Tensor whole = numbers({5, kChannels, 3, 2}, 0.3, torch::kFloat64);
  const torch::Tensor factors = numbers({5, kChannels, 3, 2}, 0.7, torch::kFloat64);
  torch::nn::BatchNorm2d joined(kChannels);
  joined->to(torch::kFloat64);
  const torch::Tensor expected_x = whole.clone().requires_grad_();
  (torch::sin(joined->forward(expected_x)) * factors).sum().backward();
  const torch::Tensor summed_x = whole.clone().requires_grad_();
  joined->forward(summed_x).sum().backward();
  for (std::size_t layout = 0; layout < layouts.size(); ++layout)
    on_threads(thread_groups(2), [&](const Group& group) {
      const std::int64_t first = group.rank() * 2, rows = group.rank() == 0 ? 2 : 3;
      const auto part = [&](const torch::Tensor& all) { return all.narrow(0, first, rows); };
      SyncBatchNorm norm(BatchNormOptions(kChannels), group);
      norm->to(torch::kFloat64);
      const torch::Tensor x = part(whole).clone().requires_grad_();
      (torch::sin(norm->forward(layouts[layout](x))) * part(factors)).sum().backward();
      expect_close(x.grad(), part(expected_x.grad()), 1e-10, "layout " + std::to_string(layout));
      const torch::Tensor z = part(whole).clone().requires_grad_();
      norm->forward(layouts[layout](z)).sum().backward();
      expect_close(z.grad(), part(summed_x.grad()), 1e-10, "summed, layout " + std::to_string(layout));
    });
}

// Two forwards of one norm before the backward of both, and once more inside of it.
TEST(SyncBatchNorm, TwiceInAGraphAndComputedAnew) {
  const torch::Tensor whole = numbers({5, kChannels}, 0.3, torch::kFloat64);
  const torch::Tensor factors = numbers({5, kChannels}, 0.7, torch::kFloat64);
  const auto backward = [](auto& forward, const torch::Tensor& x, const torch::Tensor& by) {
    const torch::Tensor y = forward(x);
    (torch::sin(y) + torch::cos(forward(y * by + x)) * by).sum().backward();
  };
  torch::nn::BatchNorm1d joined(kChannels);
  joined->to(torch::kFloat64);
  const torch::Tensor expected = whole.clone().requires_grad_();
  const auto plainly = [&](const torch::Tensor& x) { return joined->forward(x); };
  backward(plainly, expected, factors);
  for (const bool again : {false, true}) {
    std::vector<torch::Tensor> weights(2);
    on_threads(thread_groups(2), [&](const Group& group) {
      const auto part = [&](const torch::Tensor& all) {
        return all.narrow(0, group.rank() * 2, 2 + group.rank()).clone();
      };
      SyncBatchNorm norm(BatchNormOptions(kChannels), group);
      norm->to(torch::kFloat64);
      const Unit unit({norm.ptr()});
      if (again) recompute(unit);
      const auto in_unit = [&](const torch::Tensor& x) {
        return unit.run([&](const torch::Tensor& given) { return norm->forward(given); }, x);
      };
      const torch::Tensor x = part(whole).requires_grad_();
      backward(in_unit, x, part(factors));
      expect_close(x.grad(), part(expected.grad()), 1e-10, "the inputs' gradients");
      expect_close(norm->running_mean, joined->running_mean, 1e-10, "running_mean");
      expect_close(norm->running_var, joined->running_var, 1e-10, "running_var");
      EXPECT_EQ(norm->num_batches_tracked.item<int>(), 2);
      weights[static_cast<std::size_t>(group.rank())] = norm->weight.grad();
    });
    expect_close(weights[0] + weights[1], joined->weight.grad(), 1e-10, "the weight's gradient");
  }
}

TEST(SyncBatchNorm, NormalisesSixteenBitsInF32) {
  on_threads(thread_groups(2), [&](const Group& group) {
    const auto x = numbers({4, kChannels, 2}, 0.3, torch::kBFloat16);
    SyncBatchNorm norm(BatchNormOptions(kChannels), group);
    const auto y = norm->forward(x.narrow(0, 2 * group.rank(), 2));
    torch::nn::BatchNorm1d alone(kChannels);
    const auto expected = alone->forward(x.to(torch::kFloat32));
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    expect_close(y.to(torch::kFloat32), expected.narrow(0, 2 * group.rank(), 2), 1.0 / 256, "outputs");
    expect_close(norm->running_var, alone->running_var, 1e-6, "running_var");
  });
}

TEST(SyncBatchNorm, AloneItIsLibtorchsBitForBit) {
  const BatchNormOptions options(kChannels);
  const Rows shape{6, kChannels, 2, 3};
  SyncBatchNorm norm(options, thread_groups(1)[0]);
  const Outcome found = run(norm, shape, {0, 6}, torch::kFloat32);
  const Outcome expected = run_joined(options, shape, torch::kFloat32);
  for (const std::size_t pass : {0, 1}) {
    EXPECT_TRUE(torch::equal(found.outputs[pass], expected.outputs[pass]));
    EXPECT_TRUE(torch::equal(found.inputs[pass], expected.inputs[pass]));
  }
  EXPECT_TRUE(torch::equal(found.weight, expected.weight));
  EXPECT_TRUE(torch::equal(found.running_var, expected.running_var));
  // In evaluation on any number of workers, and without any: nobody is asked.
  SyncBatchNorm evaluating(BatchNormOptions(kChannels).affine(false));
  evaluating->eval();
  const auto x = numbers(shape, 0.3, torch::kFloat32);
  torch::nn::BatchNorm2d plain(BatchNormOptions(kChannels).affine(false));
  plain->eval();
  EXPECT_TRUE(torch::equal(evaluating->forward(x), plain->forward(x)));
}

TEST(SyncBatchNorm, RefusesWhatItCannotNormalise) {
  SyncBatchNorm norm(kChannels);
  expect_error<UsageError>([&] { norm->forward(torch::ones({2, kChannels})); }, {"no group", "DataParallel"});
  expect_error<UsageError>([&] { norm->forward(torch::ones({2, 4})); }, {"[2, 4]", "[batch, 3, …]"});
  on_threads(thread_groups(2), [&](const Group& group) {
    SyncBatchNorm one(BatchNormOptions(kChannels), group);
    expect_error<UsageError>(
        [&] {
          one->forward(torch::ones({group.rank(), kChannels}));
        },
        {"one value a channel", "two or more"});
    const auto x = torch::ones({2, kChannels}).requires_grad_();
    const auto y = one->forward(x).sum();
    expect_error<UsageError>([&] { y.backward({}, /*retain_graph=*/true, /*create_graph=*/true); },
                             {"first order"});
  });
}

TEST(SyncBatchNorm, AWorkerThatRunsNoBackwardIsNamed) {
  // The time holds for forward too: where somebody came to it too late, again with more.
  std::atomic<bool> late = true;
  for (auto patience = std::chrono::seconds(1); late && patience < std::chrono::seconds(20); patience *= 4) {
    late = false;
    on_threads(thread_groups(2, {.timeout = patience}), [&](const Group& group) {
      SyncBatchNorm norm(BatchNormOptions(kChannels), group);
      torch::Tensor loss;
      try {
        loss = norm->forward(torch::ones({2, kChannels}).requires_grad_()).sum();
      } catch (const TimeoutError&) {
        if (!late.exchange(true))
          say_repeated("a rank came to its forward later than " + std::to_string(patience.count()) + " s");
        return;
      }
      if (group.rank() == 0)
        expect_error<TimeoutError>([&] { loss.backward(); }, {"rank 1", "the gradients of SyncBatchNorm"});
    });
  }
  EXPECT_FALSE(late);
}

}  // namespace
}  // namespace lockstep
