// A stock libtorch program: a model on the stack, a data loader, an optimizer. data_parallel.cc is the same
// on many workers, five lines of it changed.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

struct Net : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(8, 32))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(32, 1))};
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(in(x))); }
};

// How far from the origin?
struct Points : torch::data::datasets::Dataset<Points> {
  torch::Tensor x = torch::randn({1024, 8});
  torch::Tensor y = x.norm(2, 1, true);
  torch::data::Example<> get(std::size_t i) override { return {x[i], y[i]}; }
  torch::optional<std::size_t> size() const override { return x.size(0); }
};

int main() {
  torch::manual_seed(1);
  Points points;
  auto data = points.map(torch::data::transforms::Stack<>());
  Net model;
  lockstep::DataParallel ddp(model, lockstep::init());
  torch::optim::Adam optimizer(model.parameters(), 1e-2);

  lockstep::DistributedSampler sampler(1024, ddp.group(), {.shuffle = false});
  auto loader = torch::data::make_data_loader(std::move(data), sampler, 64 / ddp.group().size());
  for (int epoch = 0; epoch < 10; ++epoch)
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      torch::mse_loss(model.forward(batch.data), batch.target).backward();
      optimizer.step();
    }

  if (ddp.group().rank() != 0) return 0;
  std::printf("loss %.4f\n", torch::mse_loss(model.forward(points.x), points.y).item<double>());
  torch::save(model.parameters(), "parameters.pt");
}
