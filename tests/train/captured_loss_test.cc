// A recorded loss, over a maker that records on the processor: what is replayed is run again, and its results
// are written where the first ones were. With CUDA's graphs: tests/cuda/training_test.cc.
#include "lockstep/train/captured_loss.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <mutex>
#include <utility>

#include "comm/thread_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/hash.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/strategies.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "train/graph_maker.h"

namespace lockstep {
namespace {

using Tensors = std::vector<torch::Tensor>;

class RunAgain final : public Graph {
 public:
  explicit RunAgain(std::function<Tensors()> body) : body_(std::move(body)) { results = body_(); }
  void replay() override {
    const torch::AutoGradMode with_gradients(true);
    const Tensors now = body_();
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < now.size(); ++i) results[i].copy_(now[i]);
  }

 private:
  std::function<Tensors()> body_;
};

class Again final : public GraphMaker {
 public:
  void warm_up(const std::function<void()>& body) override { body(); }
  std::unique_ptr<Graph> record(const std::function<Tensors()>& body) override {
    ++records;
    return std::make_unique<RunAgain>(body);
  }
  int records = 0;
};

// With batch norm, a parameter that is never used, and dropout on request.
struct Net : torch::nn::Module {
  explicit Net(double dropout_ = 0) : dropout(dropout_) {
    static std::mutex one_generator;  // of all threads
    const std::lock_guard lock(one_generator);
    torch::manual_seed(1);
    first = register_module("first", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    second = register_module("second", torch::nn::Linear(16, 3));
    unused = register_parameter("unused", torch::ones({5}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second(torch::dropout(torch::relu(norm(first(x))), dropout, is_training() && dropout > 0));
  }
  double dropout;
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor unused;
};

torch::Tensor some(int seed, std::int64_t rows = 8) {
  return torch::sin(torch::arange(rows * 6, torch::kFloat32) * 0.3 + seed).view({rows, 6});
}

CapturedLoss loss_of(const std::shared_ptr<Net>& net, bool recorded,
                     const std::shared_ptr<Again>& maker = std::make_shared<Again>()) {
  const auto function = [net](const Tensors& in) { return (net->forward(in[0]) - in[1]).pow(2).mean(); };
  return recorded ? CapturedLoss(net, function, maker) : CapturedLoss(net, function);
}

// Weights and statistics after five steps, of which the fourth has fewer rows.
std::string trained(const Group& group, const std::string& strategy_name, bool recorded) {
  // Threads have one generator: nobody seeds it while another draws, or records without drawing.
  group.barrier();
  const auto net = std::make_shared<Net>();
  group.barrier();
  const auto strategy = make_strategy(strategy_name, net, group, {});
  AdamW optimizer(*strategy, {.lr = 0.01});
  CapturedLoss loss = loss_of(net, recorded);
  for (int step = 0; step < 5; ++step) {
    const auto scope = strategy->lane({.seed = 7,
                                       .step = step,
                                       .index = group.rank(),
                                       .weight = 1,
                                       .total_weight = static_cast<double>(group.size()),
                                       .first = true,
                                       .last = true});
    group.barrier();
    const torch::Tensor x = some(step * 10 + group.rank(), step == 3 ? 5 : 8);
    loss({x, x.narrow(1, 0, 3) * 2}).backward();
    strategy->synchronize();
    optimizer.step();
  }
  EXPECT_EQ(loss.replays(), recorded ? 4 : 0);
  return params_sha256(*net);
}

TEST(CapturedLoss, HasTheBitsOfTheFunctionUnderEveryStrategy) {
  testing::on_threads(thread_groups(1), [](const Group& g) {
    const std::string expected = trained(g, "ddp", false);
    for (const char* const name : {"ddp", "zero1", "zero2"})
      EXPECT_EQ(trained(g, name, true), expected) << name;
  });
}

TEST(CapturedLoss, HasThemOnSeveralWorkers) {
  testing::on_threads(thread_groups(2), [](const Group& g) {
    EXPECT_EQ(trained(g, "ddp", true), trained(g, "ddp", false));
    EXPECT_EQ(trained(g, "zero1", true), trained(g, "ddp", false));
  });
}

TEST(CapturedLoss, GradientsAddUpAndBeginAnew) {
  const auto gradients = [](bool recorded) {
    const auto net = std::make_shared<Net>();
    CapturedLoss loss = loss_of(net, recorded);
    for (int i = 0; i < 3; ++i) {
      const torch::Tensor x = some(i);
      (loss({x, x.narrow(1, 0, 3)}) * (i + 1)).backward();
      if (i == 0) net->zero_grad();
    }
    EXPECT_EQ(loss.replays(), recorded ? 3 : 0);
    EXPECT_FALSE(net->unused.grad().defined());
    return torch::cat({net->first->weight.grad().flatten(), net->second->bias.grad()});
  };
  EXPECT_TRUE(torch::equal(gradients(true), gradients(false)));
}

TEST(CapturedLoss, OfAParameterThatHasMovedIsRecordedAgain) {
  const auto last = [](bool recorded) {
    const auto net = std::make_shared<Net>();
    const auto maker = std::make_shared<Again>();
    CapturedLoss loss = loss_of(net, recorded, maker);
    const torch::Tensor x = some(1);
    (void)loss({x, x.narrow(1, 0, 3)});
    EXPECT_EQ(maker->records, recorded ? 2 : 0);
    (void)loss({x, x.narrow(1, 0, 3)});
    net->second->weight.set_data(net->second->weight.detach() * 2);
    const torch::Tensor result = loss({x, x.narrow(1, 0, 3)});
    EXPECT_EQ(loss.replays(), recorded ? 3 : 0);
    EXPECT_EQ(maker->records, recorded ? 4 : 0);  // forward and backward, twice
    return result.item<float>();
  };
  EXPECT_EQ(last(true), last(false));
}

TEST(CapturedLoss, RefusesRandomNumbersAndNormsThatMeet) {
  const torch::Tensor x = some(1);
  CapturedLoss loss = loss_of(std::make_shared<Net>(0.5), true);
  try {
    (void)loss({x, x.narrow(1, 0, 3)});
    FAIL() << "dropout was recorded";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("random numbers"), std::string::npos) << error.what();
  }
  auto norm = std::make_shared<SyncBatchNormImpl>(torch::nn::BatchNormOptions(6));
  EXPECT_THROW(CapturedLoss(norm, [](const Tensors& in) { return in[0].sum(); }), UsageError);
}

// Both forwards left what they kept in the same memory.
TEST(CapturedLoss, RefusesABackwardThatComesTooLateOrTwice) {
  CapturedLoss loss = loss_of(std::make_shared<Net>(), true);
  const torch::Tensor x = some(1), y = some(2);
  const torch::Tensor first = loss({x, x.narrow(1, 0, 3)});
  const torch::Tensor second = loss({y, y.narrow(1, 0, 3)});
  EXPECT_THROW(first.backward(), UsageError);
  const torch::Tensor third = loss({x, x.narrow(1, 0, 3)});
  third.backward({}, /*retain_graph=*/true);
  EXPECT_THROW(third.backward(), UsageError);
  EXPECT_THROW((loss({x, x.narrow(1, 0, 3)}) + loss({y, y.narrow(1, 0, 3)})).backward(), UsageError);
  loss({y, y.narrow(1, 0, 3)}).backward();
}

// Streams of a device that only notes what is said to them: "2 behind 1".
struct NotingGuard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType kType = c10::DeviceType::FPGA;
  static c10::Stream stream(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, 0), id);
  }
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return {kType, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return stream(current); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(2); }
  c10::Stream exchangeStream(c10::Stream to) const noexcept override {
    return stream(std::exchange(current, to.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }  // for autograd
  void record(void** event, const c10::Stream& at, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    *event = &recorded;
    recorded = at.id();
  }
  void block(void*, const c10::Stream& who) const override {
    notes.push_back(std::to_string(who.id()) + " behind " + std::to_string(recorded));
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}

  static inline c10::StreamId current = 1, recorded = 0;
  static inline std::vector<std::string> notes;
};
C10_REGISTER_GUARD_IMPL(FPGA, NotingGuard);

TEST(RecordingStream, ComesBehindTheOneBeforeAndThatBehindIt) {
  {
    const RecordingStream stream(c10::Device(NotingGuard::kType, 0));
    EXPECT_EQ(NotingGuard::current, 2);
    EXPECT_EQ(std::exchange(NotingGuard::notes, {}), std::vector<std::string>{"2 behind 1"});
  }
  EXPECT_EQ(NotingGuard::current, 1);
  EXPECT_EQ(NotingGuard::notes, std::vector<std::string>{"1 behind 2"});
}

TEST(CapturedLoss, WithoutGradientsIsTheFunction) {
  const auto net = std::make_shared<Net>();
  CapturedLoss loss = loss_of(net, true);
  const torch::NoGradGuard no_grad;
  const torch::Tensor x = some(1);
  EXPECT_FALSE(loss({x, x.narrow(1, 0, 3)}).requires_grad());
  EXPECT_EQ(loss.replays(), 0);
}

}  // namespace
}  // namespace lockstep
