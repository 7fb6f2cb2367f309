// A model of its own, trained by any number of workers, with the same bits for each of them.
#include <lockstep/lockstep.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>

struct Net : torch::nn::Module {
  torch::nn::Linear hidden{nullptr}, out{nullptr};
  Net() {
    hidden = register_module("hidden", torch::nn::Linear(3 * 32 * 32, 64));
    out = register_module("out", torch::nn::Linear(64, 10));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::relu(hidden(x.flatten(1)))); }
};

int main() try {
  torch::manual_seed(1);
  at::set_num_threads(1);
  auto world = lockstep::init();  // from lockstep run, torchrun, mpirun or srun; else one worker
  auto data = lockstep::open_dataset({.name = "synthetic", .shape = {3, 32, 32}, .train_size = 512});

  auto model = std::make_shared<Net>();
  lockstep::DataParallel ddp(model, world, {.bucket_cap_mb = 25});
  lockstep::AdamW optimizer(ddp, {.lr = 1e-3});

  double loss_of_first = 0;
  double loss_of_last = 0;
  for (auto& step : lockstep::loader(data, world, {.lanes = 8, .lane_batch = 16, .seed = 1, .epochs = 5})) {
    for (auto& lane : step) {       // the lanes that this worker carries
      auto scope = ddp.lane(lane);  // its random stream; the last lane exchanges
      auto loss = torch::nn::functional::cross_entropy(model->forward(lane.data), lane.target);
      loss.backward();  // buckets leave while this runs
      if (lane.index == 0) (step.number == 0 ? loss_of_first : loss_of_last) = loss.item<double>();
    }
    optimizer.step();
  }
  if (world.rank() == 0)
    std::printf("loss of lane 0: %.4f, then %.4f\nparameters %.16s\n", loss_of_first, loss_of_last,
                lockstep::params_sha256(*model).c_str());
} catch (const lockstep::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
