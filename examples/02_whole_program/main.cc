// A whole training program, from data to the last checkpoint:
//
//   lockstep run -n 2 --max-restarts 3 -- ./whole_program [folder [epochs]]
//
// A model and a dataset of its own, examples that weigh differently, a learning-rate schedule, gradient
// accumulation and clipping, evaluation over all workers, checkpoints. Run again with the same folder, after
// a Ctrl-C, a crash or a kill, it goes on where it was; --max-restarts does that by itself. The parameters at
// the end have the same bits however often it was interrupted, and for 1, 2, 3 or 4 workers.
#include <lockstep/lockstep.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace F = torch::nn::functional;
namespace fs = std::filesystem;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  NetImpl() {
    in = register_module("in", torch::nn::Linear(2, 64));
    norm = register_module("norm", torch::nn::BatchNorm1d(64));
    dropout = register_module("dropout", torch::nn::Dropout(0.1));
    out = register_module("out", torch::nn::Linear(64, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(dropout(torch::relu(norm(in(x))))); }
};
TORCH_MODULE(Net);

// Points on three arms of a spiral, of which the third is rare and therefore counts more.
class Spiral : public lockstep::Dataset {
 public:
  explicit Spiral(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }

  lockstep::Batch get(std::span<const std::int64_t> indices, lockstep::RandomStream* random) const override {
    const auto count = static_cast<std::int64_t>(indices.size());
    lockstep::Batch batch{.data = torch::empty({count, 2}), .target = torch::empty({count}, torch::kInt64)};
    auto data = batch.data.accessor<float, 2>();
    auto target = batch.target.accessor<std::int64_t, 1>();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t index = indices[static_cast<std::size_t>(i)];
      const double along = static_cast<double>(index % 97 + 1) / 97;
      const double angle = 4 * along + 2.0944 * static_cast<double>(arm_of(index));
      // With a stream, for training, a little aside; without, for evaluation, as it is.
      const auto aside = [&] { return random != nullptr ? random->uniform(-0.1, 0.1) : 0; };
      data[i][0] = static_cast<float>(along * std::cos(angle) + aside());
      data[i][1] = static_cast<float>(along * std::sin(angle) + aside());
      target[i] = arm_of(index);
    }
    return batch;
  }
  std::vector<double> weights(std::span<const std::int64_t> indices) const override {
    std::vector<double> weights;
    for (const std::int64_t index : indices) weights.push_back(arm_of(index) == 2 ? 4 : 1);
    return weights;
  }

 private:
  static std::int64_t arm_of(std::int64_t index) { return index % 9 == 8 ? 2 : index % 2; }
  std::int64_t size_;
};

// Set by Ctrl-C, and by the launcher when the job is told to stop.
volatile std::sig_atomic_t told_to_stop = 0;

int main(int argc, char** argv) try {
  const fs::path folder = argc > 1 ? argv[1] : "whole_program.run";
  const std::int64_t epochs = argc > 2 ? std::atoll(argv[2]) : 10;
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int number) { told_to_stop = number; });

  torch::manual_seed(1);
  at::set_num_threads(1);
  auto world = lockstep::init();  // from lockstep run, torchrun, mpirun or srun; else one worker
  const bool leads = world.rank() == 0;
  auto train = std::make_shared<Spiral>(4500);
  const Spiral test(900);

  Net model;
  lockstep::DataParallel ddp(model, world);
  lockstep::AdamW optimizer(ddp, {.lr = 1e-2});

  // Where an earlier run, of however many workers, has come to.
  lockstep::CheckpointStore store(folder);
  std::string newest;
  if (leads && !store.list().empty()) newest = store.list().back();
  world.broadcast(newest, 0);
  std::int64_t first_step = 0;
  if (!newest.empty()) {
    lockstep::verify_checkpoint(newest);
    const auto file = [&](const char* name) { return lockstep::load_safetensors(fs::path(newest) / name); };
    lockstep::load_model_state(*model, file("model.safetensors").tensors, newest);
    optimizer.load_state_dict(file("optimizer.safetensors").tensors);
    first_step = lockstep::checkpoint_step(newest);
    if (leads) std::printf("goes on from step %lld\n", static_cast<long long>(first_step));
  }
  const auto save = [&](std::int64_t steps) {
    lockstep::run_on_leader(world, "writing a checkpoint", [&] {
      store.write(steps, [&](const fs::path& into) {
        lockstep::save_safetensors(into / "model.safetensors", lockstep::model_state(*model));
        lockstep::save_safetensors(into / "optimizer.safetensors", optimizer.state_dict());
      });
    });
  };

  // Each worker looks at its part of the test set; what they count is added up.
  const auto evaluate = [&](std::int64_t epoch, double loss) {
    const torch::NoGradGuard no_grad;
    std::vector<std::int64_t> own;
    for (std::int64_t i = world.rank(); i < test.size(); i += world.size()) own.push_back(i);
    const lockstep::Batch batch = test.get(own, nullptr);
    model->eval();
    const auto right = model->forward(batch.data).argmax(1).eq(batch.target).sum().item<std::int64_t>();
    model->train();
    const double accuracy =
        lockstep::mean(world, static_cast<double>(right), static_cast<double>(own.size()));
    if (!leads) return;
    std::printf("epoch %2lld  loss %.4f  accuracy %.1f %%\n", static_cast<long long>(epoch), loss,
                100 * accuracy);
    std::fflush(stdout);
  };

  auto loader = lockstep::loader(
      train, world, {.lanes = 4, .lane_batch = 32, .seed = 1, .epochs = epochs, .first_step = first_step});
  const lockstep::ScheduleOptions schedule{
      .kind = lockstep::Schedule::cosine, .lr = 1e-2, .warmup_steps = 20};
  double loss_sum = 0;  // of this worker's lanes in this epoch
  double weight_sum = 0;
  for (auto& step : loader) {
    optimizer.set_lr(lockstep::lr_at(schedule, step.number, loader.steps()));
    for (auto& lane : step) {       // the lanes that this worker carries add up
      auto scope = ddp.lane(lane);  // its random stream; the last lane exchanges
      // A lane in two halves, where memory is too small for it at once.
      const auto x = lane.data.chunk(2), y = lane.target.chunk(2), weights = lane.weights.chunk(2);
      const auto backward = [&](std::size_t half) {
        const auto losses = F::cross_entropy(model->forward(x[half]), y[half],
                                             F::CrossEntropyFuncOptions().reduction(torch::kNone));
        const torch::Tensor loss = (weights[half] * losses).sum() / lane.weight;
        loss.backward();
        loss_sum += lane.weight * loss.item<double>();
      };
      {
        auto alone = ddp.no_sync();  // stays here
        backward(0);
      }
      backward(1);  // and goes with this one
      weight_sum += lane.weight;
    }
    lockstep::clip_grad_norm_(ddp, 1.0);
    optimizer.step();

    const std::int64_t steps = step.number + 1;
    const int stop = world.all_reduce(int{told_to_stop}, {.op = lockstep::ReduceOp::max});  // all or none
    if (stop != 0 || steps % 20 == 0 || steps == loader.steps()) save(steps);
    if (stop != 0) {
      if (leads)
        std::printf("stopped after step %lld; run it again to go on\n", static_cast<long long>(steps));
      return 128 + stop;
    }
    if (!step.ends_epoch) continue;
    const double loss = lockstep::mean(world, loss_sum, weight_sum);  // of a run that goes on: of its part
    evaluate(step.epoch + 1, loss);
    loss_sum = weight_sum = 0;
  }
  if (leads) std::printf("parameters %.16s\n", lockstep::params_sha256(*model).c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
