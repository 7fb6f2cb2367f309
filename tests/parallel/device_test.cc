// Training where the model is on a device: the test device, whose memory the host can't touch, whose streams
// are slow, and which notices what no event orders (comm/test_device.h).
#include "comm/expect_error.h"
#include "comm/test_device.h"
#include "comm/thread_ranks.h"
#include "lockstep/compress/bf16.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/grad_scaler.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategies.h"
#include "lockstep/parallel/tensor.h"
#include "optim/update.h"
#include "parallel/torch_test_device.h"
#include "parallel/waves.h"

namespace lockstep::testing {
namespace {

using Tensors = std::vector<torch::Tensor>;

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
  int ranks = 3;
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
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  std::vector<Tensors> plain(ranks);
  std::vector<Tensors> on_device(ranks);
  on_threads(thread_groups(plan.ranks), [&](const Group& g) {
    plain[static_cast<std::size_t>(g.rank())] = train_net(g, torch::kCPU, plan);
  });
  const std::int64_t waits = TestDevice::get().host_waits();
  on_threads(test_device_groups(plan.ranks), [&](const Group& g) {
    on_device[static_cast<std::size_t>(g.rank())] = train_net(g, torch_test_device(g), plan);
  });
  EXPECT_EQ(TestDevice::get().host_waits(), waits);
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
  for (std::size_t r = 0; r < ranks; ++r) {
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

// Whose gradients stay where they are.
TEST(DeviceTraining, SoHasASingleWorker) { expect_the_processors_bits({.ranks = 1}); }
TEST(DeviceTraining, SoHasASingleWorkerInOnePart) {
  expect_the_processors_bits({.strategy = "zero1", .ranks = 1});
}
TEST(DeviceTraining, SoHasASingleWorkerWithAnExchangeOfItsOwn) {
  StrategyOptions options;
  options.hook = [](const Bucket& bucket) {
    EXPECT_NE(bucket.data.data, nullptr);  // it is there to be looked at
    return bucket.group.all_reduce_async(bucket.data, {.op = ReduceOp::avg, .divisor = 2});
  };
  expect_the_processors_bits({.options = options, .ranks = 1});
}

// A single worker's only lane stays where it is, too; several are added up; then it stays again.
TEST(DeviceTraining, SoHaveTheLanesOfASingleWorker) {
  const auto run = [](const Group& g, torch::Device device) {
    auto net = std::make_shared<DeviceNet>(device);
    const auto strategy = make_strategy("ddp", net, g);
    AdamW optimizer(*strategy);
    for (const int lanes : {1, 3, 2, 1, 0}) {
      for (int lane = 0; lane < lanes; ++lane) {
        const double total = lanes == 2 ? 1 : lanes;  // of two the second weighs nothing
        const auto scope = strategy->lane({.step = lanes,
                                           .index = lane,
                                           .weight = lanes == 2 && lane == 1 ? 0.0 : 1.0,
                                           .total_weight = total,
                                           .first = lane == 0,
                                           .last = lane == lanes - 1});
        net->forward(waves({5, 6}, 3 * lane + lanes, device), lane == 0).pow(2).sum().backward();
      }
      if (lanes == 0) net->forward(waves({5, 6}, 1, device), true).pow(2).sum().backward();  // without any
      optimizer.step();
      optimizer.zero_grad();
    }
    Tensors result;
    for (const torch::Tensor& tensor : net->parameters()) result.push_back(tensor.detach().cpu());
    for (const torch::Tensor& tensor : net->buffers()) result.push_back(tensor.cpu());
    return result;
  };
  Tensors plain, on_device;
  on_threads(thread_groups(1), [&](const Group& g) { plain = run(g, torch::kCPU); });
  on_threads(test_device_groups(1), [&](const Group& g) { on_device = run(g, torch_test_device(g)); });
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
  for (std::size_t k = 0; k < plain.size(); ++k)
    EXPECT_TRUE(torch::equal(on_device[k], plain[k])) << "tensor " << k << ": " << on_device[k] << plain[k];
}

// Of one worker in one step: all skip it, and nothing has changed.
TEST(DeviceTraining, AStepThatOverflowsIsSkippedByAll) {
  for (const int ranks : {1, 2})
    for (const char* const name : {"ddp", "zero1"})
      on_threads(test_device_groups(ranks), [&](const Group& g) {
        const torch::Device device = torch_test_device(g);
        auto net = std::make_shared<DeviceNet>(device);
        const auto strategy = make_strategy(name, net, g, {});
        AdamW optimizer(*strategy);
        GradScaler scaler(optimizer, {.init_scale = 8});
        const auto step = [&](double times) {
          {
            const auto scope = strategy->lane({.index = g.rank(),
                                               .weight = 1,
                                               .total_weight = static_cast<double>(ranks),
                                               .first = true,
                                               .last = true});
            const torch::Tensor out = net->forward(waves({5, 6}, g.rank(), device), true);
            scaler.scale(out.pow(2).sum() * times).backward();
          }
          return scaler.step();
        };
        EXPECT_TRUE(step(1));
        Tensors before;
        for (const auto& [key, tensor] : optimizer.state_dict()) before.push_back(tensor);
        const torch::Tensor mean = net->mean.cpu().clone();
        EXPECT_FALSE(step(g.rank() == ranks - 1 ? 1e38 : 1));
        std::size_t k = 0;
        for (const auto& [key, tensor] : optimizer.state_dict())
          EXPECT_TRUE(torch::equal(tensor, before[k++])) << key;
        EXPECT_TRUE(torch::equal(net->mean.cpu(), mean));
        EXPECT_EQ(scaler.scale(), 4);
        EXPECT_TRUE(step(1));
      });
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
}

TEST(DeviceTraining, BuffersThatWereMovedAwayAreNamed) {
  on_threads(test_device_groups(1), [](const Group& g) {
    const torch::Device device = torch_test_device(g);
    auto net = std::make_shared<DeviceNet>(device);
    const auto strategy = make_strategy("ddp", net, g);
    const torch::NoGradGuard no_grad;
    net->mean.set_data(torch::zeros({8}).to(device));
    const auto scope_of_a_lane = [&] {
      const torch::AutoGradMode with_grad(true);
      {
        const auto scope = strategy->lane({.weight = 1, .total_weight = 1, .first = true, .last = true});
        net->forward(waves({5, 6}, 0, device), true).pow(2).sum().backward();
      }
    };
    expect_error<UsageError>(scope_of_a_lane, {"a buffer of the model was given other memory"});
  });
}

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
  if (!kernel::has_updates(Device::Kind::cuda))
    expect_error<UsageError>([&] { kernel::update(far, kernel::SgdUpdate{}); }, {"without kernels"});
}

}  // namespace
}  // namespace lockstep::testing
