// Training where the model is on a device: the test device, whose memory the host can't touch, whose streams
// are slow, and which notices what no event orders (comm/test_device.h).
#include "comm/expect_error.h"
#include "comm/test_device.h"
#include "comm/thread_ranks.h"
#include "lockstep/compress/bf16.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategies.h"
#include "lockstep/parallel/tensor.h"
#include "optim/update.h"
#include "parallel/torch_test_device.h"

namespace lockstep::testing {
namespace {

using Tensors = std::vector<torch::Tensor>;

torch::Tensor waves(at::IntArrayRef sizes, double phase, torch::Device device) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return torch::sin(torch::arange(count, torch::kFloat64) + phase).to(torch::kFloat32).view(sizes).to(device);
}

// With what batch norm would keep, and a parameter that is used in some steps only.
struct DeviceNet : torch::nn::Module {
  explicit DeviceNet(torch::Device device, bool buffers = true) {
    first = register_parameter("first", waves({6, 8}, 1, device));
    second = register_parameter("second", waves({8, 3}, 2, device));
    seldom = register_parameter("seldom", waves({3}, 3, device));
    if (!buffers) return;
    mean = register_buffer("mean", torch::zeros({8}).to(device));
    wide = register_buffer("wide", torch::zeros({2}, torch::kFloat64).to(device));
    count = register_buffer("count", torch::zeros({1}, torch::kInt64).to(device));
  }
  torch::Tensor forward(const torch::Tensor& x, bool all) {
    const torch::Tensor hidden = torch::relu(x.mm(first));
    if (mean.defined()) {
      const torch::NoGradGuard no_grad;
      mean.mul_(0.9).add_(hidden.detach().mean(0), 0.1);
      wide.add_(hidden.detach().sum().to(torch::kFloat64));
      count.add_(1);
    }
    const torch::Tensor y = hidden.mm(second);
    return all ? y + seldom : y;
  }
  torch::Tensor first, second, seldom, mean, wide, count;
};

struct Plan {
  std::string strategy = "ddp";
  StrategyOptions options = {};
  bool adam = true;
  bool clip = false;
  bool buffers = true;
};

Tensors train_net(const Group& g, torch::Device device, const Plan& plan) {
  auto net = std::make_shared<DeviceNet>(device, plan.buffers);
  StrategyOptions options = plan.options;
  options.first_bucket_mb = 1e-4;  // about one parameter a bucket
  options.bucket_cap_mb = 1e-4;
  const auto strategy = make_strategy(plan.strategy, net, g, options);
  std::unique_ptr<Optimizer> optimizer;
  if (plan.adam)
    optimizer = std::make_unique<AdamW>(*strategy, AdamWOptions{.lr = 0.05});
  else
    optimizer = std::make_unique<SGD>(*strategy, SGDOptions{.lr = 0.05, .momentum = 0.9});
  for (int step = 0; step < 4; ++step) {
    optimizer->zero_grad();
    const torch::Tensor x = waves({5, 6}, 10 * g.rank() + step, device);
    net->forward(x, step == 2 && g.rank() == 0).pow(2).sum().backward();
    if (plan.clip) (void)clip_grad_norm_(*strategy, 0.5);
    optimizer->step();
  }
  Tensors result;
  for (const torch::Tensor& tensor : net->parameters()) result.push_back(tensor.detach().cpu());
  for (const torch::Tensor& tensor : net->buffers()) result.push_back(tensor.cpu());
  for (const auto& [name, tensor] : optimizer->state_dict()) {
    EXPECT_TRUE(tensor.device().is_cpu()) << name;
    result.push_back(tensor);
  }
  return result;
}

void expect_the_processors_bits(const Plan& plan) {
  constexpr int kRanks = 3;
  std::vector<Tensors> plain(kRanks);
  std::vector<Tensors> on_device(kRanks);
  on_threads(thread_groups(kRanks), [&](const Group& g) {
    plain[static_cast<std::size_t>(g.rank())] = train_net(g, torch::kCPU, plan);
  });
  const std::int64_t waits = TestDevice::get().host_waits();
  on_threads(test_device_groups(kRanks), [&](const Group& g) {
    on_device[static_cast<std::size_t>(g.rank())] = train_net(g, torch_test_device(g), plan);
  });
  EXPECT_EQ(TestDevice::get().host_waits(), waits);
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
  for (std::size_t r = 0; r < kRanks; ++r) {
    ASSERT_EQ(on_device[r].size(), plain[r].size());
    for (std::size_t k = 0; k < plain[r].size(); ++k)
      EXPECT_TRUE(torch::equal(on_device[r][k], plain[r][k]))
          << "rank " << r << ", tensor " << k << ": " << on_device[r][k] << " and " << plain[r][k];
  }
}

TEST(DeviceTraining, DataParallelHasTheProcessorsBitsAndTheHostWaitsForNoStream) {
  expect_the_processors_bits({});
}

TEST(DeviceTraining, SoHasZero1) { expect_the_processors_bits({.strategy = "zero1", .adam = false}); }
TEST(DeviceTraining, SoHasZero2) { expect_the_processors_bits({.strategy = "zero2", .adam = false}); }

TEST(DeviceTraining, SoHaveGradientsOn16Bits) {
  expect_the_processors_bits({.options = {.exchange = bf16_exchange}});
}

TEST(DeviceTraining, SoHasClipping) { expect_the_processors_bits({.adam = false, .clip = true}); }

// Lanes add up in spare sets of buckets, weighted.
TEST(DeviceTraining, SoHaveLanes) {
  const auto lanes = [](const Group& g, torch::Device device) {
    auto net = std::make_shared<DeviceNet>(device);
    const auto strategy = make_strategy("ddp", net, g);
    AdamW optimizer(*strategy);
    for (int step = 0; step < 2; ++step) {
      for (int lane = 0; lane < 3; ++lane) {
        const auto scope = strategy->lane({.step = step,
                                           .index = 3 * g.rank() + lane,
                                           .weight = 1.0 + lane,
                                           .total_weight = 12,
                                           .first = lane == 0,
                                           .last = lane == 2});
        net->forward(waves({5, 6}, 7 * g.rank() + 3 * lane + step, device), lane == 1)
            .pow(2)
            .sum()
            .backward();
      }
      optimizer.step();
    }
    Tensors result;
    for (const torch::Tensor& tensor : net->parameters()) result.push_back(tensor.detach().cpu());
    for (const torch::Tensor& tensor : net->buffers()) result.push_back(tensor.cpu());
    return result;
  };
  std::vector<Tensors> plain(2);
  std::vector<Tensors> on_device(2);
  on_threads(thread_groups(2),
             [&](const Group& g) { plain[static_cast<std::size_t>(g.rank())] = lanes(g, torch::kCPU); });
  on_threads(test_device_groups(2), [&](const Group& g) {
    on_device[static_cast<std::size_t>(g.rank())] = lanes(g, torch_test_device(g));
  });
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
  for (std::size_t r = 0; r < 2; ++r)
    for (std::size_t k = 0; k < plain[r].size(); ++k)
      EXPECT_TRUE(torch::equal(on_device[r][k], plain[r][k])) << "rank " << r << ", tensor " << k;
}

TEST(DeviceTraining, AnExchangeThatForgetsItsWorkIsCaught) {
  StrategyOptions options;
  options.hook = [](const Bucket& bucket) {
    (void)bucket.group.all_reduce_async(bucket.data, {.op = ReduceOp::avg});
    return Work();  // as if the bucket were there already
  };
  options.check_replicas_every = 0;  // it would find them drifted apart
  // Without buffers nothing else waits for the group's stream.
  on_threads(test_device_groups(2), [&](const Group& g) {
    (void)train_net(g, torch_test_device(g), {.options = options, .buffers = false});
  });
  EXPECT_FALSE(TestDevice::get().take_hazards().empty());
}

TEST(DeviceTraining, TensorsThereAreInCollectivesLikeOthers) {
  on_threads(test_device_groups(3), [](const Group& g) {
    const torch::Device device = torch_test_device(g);
    const torch::Tensor x = torch::full({2, 3}, g.rank() + 1.0).to(device);
    g.all_reduce(x);
    EXPECT_TRUE(torch::equal(x.cpu(), torch::full({2, 3}, 6.0)));
    const Tensors parts = g.all_gather(torch::full({g.rank(), 2}, g.rank() + 0.5).to(device));
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ(parts[static_cast<std::size_t>(r)].device(), device);
      EXPECT_TRUE(torch::equal(parts[static_cast<std::size_t>(r)].cpu(), torch::full({r, 2}, r + 0.5)));
    }
  });
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
}

TEST(DeviceTraining, WhereSomethingIsMissingOneLineSaysSo) {
  on_threads(thread_groups(2), [](const Group& g) {
    const std::string where = "custom:" + std::to_string(g.rank());
    expect_error<UsageError>(
        [&] { (void)make_strategy("ddp", std::make_shared<DeviceNet>(torch_test_device(g)), g); },
        {"the shm engine does not work on " + where + "; accepted: cpu"});
  });
  on_threads(test_device_groups(2), [](const Group& g) {
    auto net = std::make_shared<DeviceNet>(torch_test_device(g));
    net->register_parameter("far", waves({2}, 0, torch::kCPU));
    expect_error<UsageError>(
        [&] { (void)make_strategy("ddp", net, g); },
        {"parameter 'far' is on cpu, 'first' on custom:", "accepted: all on one device"});
  });
  float x = 0;
  const kernel::Elements far{.parameter = &x, .gradient = &x, .count = 1, .device = {Device::Kind::cuda, 0}};
  expect_error<UsageError>([&] { kernel::update(far, kernel::SgdUpdate{}); }, {"without kernels"});
}

}  // namespace
}  // namespace lockstep::testing
