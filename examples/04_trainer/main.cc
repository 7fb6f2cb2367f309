// A model, a dataset and a loss of one's own, and the trainer for everything else:
//   lockstep run -n 2 -- ./trainer [folder]        Ctrl-C, and the same again: it goes on where it was
#include <lockstep/lockstep.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

struct Wave : lockstep::Dataset {  // y = sin(3 x), with noise where it is trained on
  std::int64_t size() const override { return 2000; }
  lockstep::Batch get(std::span<const std::int64_t> indices, lockstep::RandomStream* random) const override {
    auto x =
        torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end())).unsqueeze(1) / 1000.0 - 1;
    const double noise = random == nullptr ? 0 : random->uniform(-0.1, 0.1);
    return {.data = x, .target = torch::sin(3 * x) + noise};
  }
};

int main(int argc, char** argv) try {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(1, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  const auto data = std::make_shared<Wave>();
  const auto squared = [](const auto& y, const auto& batch) { return (y - batch.target).pow(2).mean(); };

  lockstep::Trainer trainer(net, {.train = data, .test = data, .loss = squared},
                            {.model_name = "net",
                             .data_name = "wave",
                             .lanes = 4,
                             .lane_batch = 25,
                             .schedule = {.kind = lockstep::Schedule::cosine, .lr = 0.01},
                             .epochs = 30,
                             .out = argc > 1 ? argv[1] : "trainer.run",
                             .if_there = lockstep::IfThere::resume});
  return trainer.run().exit_status();
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
