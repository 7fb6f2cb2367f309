// What is measured of a program's own model: steps with and without the exchange, and predictions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <thread>

#include "comm/thread_ranks.h"
#include "lockstep/models/models.h"
#include "lockstep/train/infer.h"
#include "lockstep/train/step_bench.h"
#include "train/exchange.h"

namespace lockstep {
namespace {

// Example i is i itself, of class i % 2.
class Parities : public Dataset {
 public:
  std::int64_t size() const override { return 10; }
  Batch get(std::span<const std::int64_t> indices, RandomStream*) const override {
    const torch::Tensor numbers =
        torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), torch::kLong);
    return {.data = numbers.to(torch::kFloat).unsqueeze(1), .target = numbers.remainder(2)};
  }
  std::string fingerprint() const override { return std::string(64, 'a'); }
};

torch::Tensor cross_entropy(const torch::Tensor& logits, const Batch& batch) {
  return at::cross_entropy_loss(logits, batch.target);
}

TEST(Infer, CountsWhatIsRightOfAnyBatch) {
  std::set<std::int64_t> sizes;
  const Task task{.train = {},
                  .test = std::make_shared<Parities>(),
                  .loss = cross_entropy,
                  .forward = [&](const Batch& batch) {  // always class 0, sure of it
                    sizes.insert(batch.data.size(0));
                    return torch::tensor({20.0F, -20.0F}).repeat({batch.data.size(0), 1});
                  }};
  const InferResult all = infer(task, 4, 0);
  EXPECT_EQ(all.examples, 10);
  EXPECT_EQ(all.accuracy, 0.5);
  EXPECT_NEAR(all.loss, 20, 1e-6);  // 0 for a half, 40 for the other
  EXPECT_EQ(sizes, (std::set<std::int64_t>{2, 4}));
  EXPECT_LE(all.ms_p50, all.ms_p95);
  EXPECT_GT(all.ms_mean, 0);
  const InferResult first = infer(task, 1, 3);  // 0, 1, 2
  EXPECT_EQ(first.examples, 3);
  EXPECT_EQ(first.accuracy, 2.0 / 3);
  EXPECT_EQ(infer(task, 100, 100).examples, 10);
}

TEST(BenchSteps, MeasuresEveryKindOfStep) {
  testing::on_threads(thread_groups(2, {.timeout = std::chrono::seconds(60)}), [](const Group& g) {
    const std::shared_ptr<Model> model = make_mlp({.inputs = 1, .width = 8, .layers = 1, .classes = 2});
    const Task task{.train = {}, .loss = cross_entropy, .forward = [&](const Batch& batch) {
                      return model->forward(batch.data);
                    }};
    const std::vector<std::int64_t> own = {g.rank(), g.rank() + 2};
    std::vector<std::int64_t> told;
    const StepBenchResult result =
        bench_steps(model, task, Parities().get(own, nullptr), {.optimizer = "sgd", .steps = 7}, g,
                    [&](std::int64_t done) { told.push_back(done); });
    EXPECT_EQ(told, (std::vector<std::int64_t>{5, 7}));
    EXPECT_THROW(bench_steps(model, task, Parities().get(own, nullptr), {.offload = {.folder = "/tmp"}}, g),
                 UsageError);
    for (const double ms : {result.step_ms, result.alone_ms, result.in_phase_ms}) EXPECT_GT(ms, 0);
    EXPECT_LE(result.step_ms, result.step_ms_p95);
    EXPECT_LE(result.alone_ms, result.alone_ms_p95);
    EXPECT_DOUBLE_EQ(result.efficiency(), result.alone_ms / result.step_ms);
    EXPECT_GT(result.comm_fraction, 0);
    EXPECT_LT(result.comm_fraction, 1);
    EXPECT_EQ(g.all_reduce(result.step_ms, {.op = ReduceOp::max}), result.step_ms);  // the same everywhere
  });
}

// The memory that was measured with is somebody else's by the time the error is caught.
TEST(MeasureCrowding, LeavesNothingUnderWayWhereTheProgramThrows) {
  testing::on_threads(thread_groups(2, {.timeout = std::chrono::seconds(60)}), [](const Group& g) {
    constexpr std::size_t kFloats = std::size_t{1} << 20;
    int computed = 0;
    EXPECT_THROW(measure_crowding(g,
                                  [&] {
                                    if (++computed > 3) throw std::runtime_error("no more of it");
                                    std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                  }),
                 std::runtime_error);
    const CommMemory memory = g.allocate(2 * kFloats * sizeof(float));
    std::fill_n(memory.as<float>(), 2 * kFloats, 1.0F);
    g.barrier();  // behind all that was begun
    EXPECT_EQ(std::count(memory.as<float>(), memory.as<float>() + 2 * kFloats, 1.0F),
              std::ptrdiff_t{2 * kFloats});
  });
}

}  // namespace
}  // namespace lockstep
