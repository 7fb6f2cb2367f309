// Two models that train against each other, each wrapped. Every worker takes its part of one batch and of one
// noise, so that two workers do what one does.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

using torch::nn::Linear;

int main() {
  torch::manual_seed(1);
  auto world = lockstep::init();
  torch::nn::Sequential generator(Linear(4, 32), torch::nn::Tanh(), Linear(32, 2));
  torch::nn::Sequential critic(Linear(2, 32), torch::nn::Tanh(), Linear(32, 1));
  lockstep::DataParallel parallel_generator(generator, world);
  lockstep::DataParallel parallel_critic(critic, world);
  const auto adam = torch::optim::AdamOptions(3e-3).betas({0.5, 0.99});
  torch::optim::Adam generator_optimizer(generator->parameters(), adam);
  torch::optim::Adam critic_optimizer(critic->parameters(), adam);

  // What this worker has of a batch that all have drawn, from the same seed.
  const auto part = [&](const torch::Tensor& whole) {
    const std::int64_t size = whole.size(0) / world.size();
    return whole.narrow(0, world.rank() * size, size);
  };
  const auto loss = [](const torch::Tensor& verdict, double truth) {
    return torch::binary_cross_entropy_with_logits(verdict, torch::full_like(verdict, truth));
  };
  for (int step = 0; step < 1000; ++step) {
    const auto angle = part(torch::rand({64, 1}) * 6.2832);  // real ones lie on a circle
    const auto real = torch::cat({torch::cos(angle), torch::sin(angle)}, 1);
    const auto fake = generator->forward(part(torch::randn({64, 4})));

    critic_optimizer.zero_grad();
    (loss(critic->forward(real), 1) + loss(critic->forward(fake.detach()), 0)).backward();
    critic_optimizer.step();

    generator_optimizer.zero_grad();
    auto alone = parallel_critic.no_sync();  // the critic's gradients of this one are thrown away
    loss(critic->forward(fake), 1).backward();
    generator_optimizer.step();
  }

  const torch::NoGradGuard no_grad;
  const auto radius = generator->forward(torch::randn({1024, 4})).norm(2, 1);
  if (world.rank() != 0) return 0;
  std::printf("radius %.2f, between %.2f and %.2f\n", radius.mean().item<double>(),
              radius.quantile(0.1).item<double>(), radius.quantile(0.9).item<double>());
  torch::save(generator->parameters(), "generator.pt");
  torch::save(critic->parameters(), "critic.pt");
}
