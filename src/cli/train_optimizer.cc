#include "cli/train_optimizer.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

class OwnOptimizer final : public TrainOptimizer {
 public:
  OwnOptimizer(std::unique_ptr<Optimizer> optimizer, double state_ratio)
      : optimizer_(std::move(optimizer)), state_ratio_(state_ratio) {}

  void set_lr(double lr) override { optimizer_->set_lr(lr); }
  void step() override { optimizer_->step(); }
  void zero_grad() override { optimizer_->zero_grad(); }
  void save(const fs::path& folder) override {
    save_safetensors(folder / "optimizer.safetensors", optimizer_->state_dict());
  }
  void load(const fs::path& folder) override {
    optimizer_->load_state_dict(load_safetensors(folder / "optimizer.safetensors").tensors);
  }
  void share(const Group& world) override {
    const StateDict state = optimizer_->state_dict();  // the same names in the same order everywhere
    for (const auto& [name, tensor] : state)
      world.broadcast({tensor.data_ptr(), tensor.nbytes(), DType::u8}, 0);
    optimizer_->load_state_dict(state);
  }
  double state_ratio() const override { return state_ratio_; }

 private:
  std::unique_ptr<Optimizer> optimizer_;
  double state_ratio_;
};

class TorchOptimizer final : public TrainOptimizer {
 public:
  TorchOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer, DataParallel* ddp, double state_ratio)
      : optimizer_(std::move(optimizer)), ddp_(ddp), state_ratio_(state_ratio) {}

  void set_lr(double lr) override {
    for (auto& group : optimizer_->param_groups()) group.options().set_lr(lr);
  }
  void step() override {
    if (ddp_ != nullptr) ddp_->synchronize();
    optimizer_->step();
    if (ddp_ != nullptr) ddp_->end_step();
  }
  void zero_grad() override { optimizer_->zero_grad(); }
  void save(const fs::path& folder) override { write_file(folder / "optimizer.pt", bytes()); }
  void load(const fs::path& folder) override {
    torch::serialize::InputArchive archive;
    archive.load_from((folder / "optimizer.pt").string());
    optimizer_->load(archive);
  }
  void share(const Group& world) override {
    std::string state = world.rank() == 0 ? bytes() : "";
    std::vector<std::int64_t> length = {static_cast<std::int64_t>(state.size())};
    world.broadcast(buffer(length), 0);
    state.resize(static_cast<std::size_t>(length[0]));
    world.broadcast({state.data(), state.size(), DType::u8}, 0);
    if (world.rank() == 0) return;
    std::istringstream stream(state);
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    optimizer_->load(archive);
  }
  double state_ratio() const override { return state_ratio_; }

 private:
  std::string bytes() {
    std::ostringstream stream;
    torch::serialize::OutputArchive archive;
    optimizer_->save(archive);
    archive.save_to(stream);
    return stream.str();
  }

  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  DataParallel* ddp_;  // null: local
  double state_ratio_;
};

std::unique_ptr<torch::optim::Optimizer> make_torch(const TrainOptions& o,
                                                    std::vector<torch::Tensor> parameters) {
  const double lr = *o.lr, decay = *o.weight_decay;
  if (o.optimizer == "torch-sgd")
    return std::make_unique<torch::optim::SGD>(
        parameters,
        torch::optim::SGDOptions(lr).momentum(o.momentum).weight_decay(decay).nesterov(o.nesterov));
  if (o.optimizer == "torch-adam")
    return std::make_unique<torch::optim::Adam>(parameters,
                                                torch::optim::AdamOptions(lr).weight_decay(decay));
  return std::make_unique<torch::optim::AdamW>(parameters,
                                               torch::optim::AdamWOptions(lr).weight_decay(decay));
}

// `source`: the gradients' source, or a list of parameters.
template <class Source>
std::unique_ptr<Optimizer> make_own(const TrainOptions& o, Source&& source) {
  const double lr = *o.lr, decay = *o.weight_decay;
  if (o.optimizer == "sgd")
    return std::make_unique<SGD>(
        source, SGDOptions{.lr = lr, .momentum = o.momentum, .weight_decay = decay, .nesterov = o.nesterov});
  if (o.optimizer == "adam")
    return std::make_unique<Adam>(source, AdamOptions{.lr = lr, .weight_decay = decay});
  return std::make_unique<AdamW>(source, AdamWOptions{.lr = lr, .weight_decay = decay});
}

double state_ratio_of(const TrainOptions& o) {
  return !o.optimizer.ends_with("sgd") ? 2 : o.momentum == 0 ? 0 : 1;
}

bool is_torch(const TrainOptions& o) { return o.optimizer.starts_with("torch-"); }

std::vector<torch::Tensor> tensors_of(const DataParallel& ddp) {
  std::vector<torch::Tensor> tensors;
  for (const NamedTensor& p : ddp.parameters()) tensors.push_back(p.tensor);
  return tensors;
}

}  // namespace

std::unique_ptr<TrainOptimizer> make_optimizer(const TrainOptions& o, DataParallel& ddp) {
  if (!is_torch(o)) return std::make_unique<OwnOptimizer>(make_own(o, ddp), state_ratio_of(o));
  return std::make_unique<TorchOptimizer>(make_torch(o, tensors_of(ddp)), &ddp, state_ratio_of(o));
}

std::unique_ptr<TrainOptimizer> make_local_optimizer(const TrainOptions& o, DataParallel& ddp) {
  if (!is_torch(o)) return std::make_unique<OwnOptimizer>(make_own(o, ddp.parameters()), state_ratio_of(o));
  return std::make_unique<TorchOptimizer>(make_torch(o, tensors_of(ddp)), nullptr, state_ratio_of(o));
}

}  // namespace lockstep::cli
