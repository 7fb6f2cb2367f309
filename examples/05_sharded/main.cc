// A model of one's own, data-parallel with everything in shards. The two lines that differ from DataParallel
// say so.
//   lockstep run -n 2 -- ./sharded
#include <lockstep/lockstep.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>

struct Net : torch::nn::Module {
  torch::nn::Linear in{nullptr}, middle{nullptr}, out{nullptr};
  Net() {
    in = register_module("in", torch::nn::Linear(64, 512));
    middle = register_module("middle", torch::nn::Linear(512, 512));
    out = register_module("out", torch::nn::Linear(512, 10));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor h = torch::relu(in->forward(x.flatten(1)));
    return out->forward(torch::relu(middle->forward(h)));
  }
};

int main() try {
  auto world = lockstep::init();
  torch::manual_seed(1);
  auto net = std::make_shared<Net>();
  auto data = lockstep::open_dataset({.name = "synthetic", .shape = {64}, .train_size = 512});

  lockstep::Sharded model(net, world, lockstep::ShardStage::parameters);  // DataParallel model(net, world);
  lockstep::AdamW optimizer(model, {.lr = 1e-3});  // any of ours; torch::optim's are not
  for (auto& step : lockstep::loader(data, world, {.lanes = 2, .lane_batch = 32})) {
    for (auto& lane : step) {
      auto scope = model.lane(lane);
      torch::nn::functional::cross_entropy(net->forward(lane.data), lane.target).backward();
    }
    optimizer.step();
  }

  std::size_t whole = 0;
  for (const torch::Tensor& p : net->parameters()) whole += p.nbytes();
  const auto print = [](const char* what, std::size_t held, std::size_t of) {
    std::printf("%-10s %5zu KiB of %5zu\n", what, held >> 10, of >> 10);
  };
  if (world.rank() == 0) {
    print("parameters", model.parameter_bytes(), whole);
    print("gradients", model.gradient_bytes(), whole);
    print("optimizer", optimizer.state_bytes(), 2 * whole);
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
