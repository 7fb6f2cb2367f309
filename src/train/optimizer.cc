#include "train/optimizer.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <optional>
#include <sstream>

#include "base/option_name.h"
#include "checkpoint/training_files.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/leader.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/optim/onebit_adam.h"
#include "lockstep/optim/optimizer.h"
#include "train/exclusions.h"
#include "train/load_parts.h"
#include "train/precision.h"

namespace lockstep {
namespace {

constexpr const char* kOneBitAdam = "onebit-adam";

namespace fs = std::filesystem;

class OwnOptimizer final : public TrainOptimizer {
 public:
  OwnOptimizer(std::unique_ptr<Optimizer> optimizer, std::optional<GradScalerOptions> scaler = {})
      : optimizer_(std::move(optimizer)) {
    if (scaler) scaler_.emplace(*optimizer_, *scaler);
  }

  void set_lr(double lr) override { optimizer_->set_lr(lr); }
  bool step() override {
    if (scaler_) return scaler_->step();
    optimizer_->step();
    return true;
  }
  const GradScaler* scaler() const override { return scaler_ ? &*scaler_ : nullptr; }
  void zero_grad() override { optimizer_->zero_grad(); }
  void save(SavedState& state, const SliceOwners& owners, const Group& world) override {
    SavedState::Set& set = state.sets[kOptimizerFile];
    std::map<std::string, std::vector<StatePart>> joined;  // by kind: of parameters that are not contiguous
    for (const StatePart& part : optimizer_->state_parts()) {
      if (part.everywhere) {
        add_whole(set, world.rank(), part.name, part.tensor);
      } else if (part.plain && part.stream) {
        add_stored_run(set, owners, part.name, part.slice, part.dtype, part.stream);
      } else if (part.plain) {
        add_run(set, owners, part.name, part.slice, part.tensor);
      } else {
        joined[part.name.substr(0, part.name.find('/'))].push_back(part);
      }
    }
    for (const auto& [kind, parts] : joined) {  // one at a time in memory, of what is on disk
      std::vector<torch::Tensor> tensors(owners.slices().size());
      std::vector<std::string> names(owners.slices().size());
      for (const StatePart& part : parts) {
        tensors[part.slice] = part.fetch ? part.fetch() : part.tensor;
        names[part.slice] = part.name;
      }
      add_joined(set, optimizer_->source(), world.rank(), tensors, names);
    }
    if (scaler_)
      state.files.emplace_back(kScalerFile, [scale = scaler_->state_dict()](const fs::path& file) {
        save_safetensors(file, scale);
      });
  }
  void load(const fs::path& checkpoint, const SliceOwners& owners, const Group& world) override {
    load_optimizer_state(checkpoint, *optimizer_, owners, world);
    if (!scaler_) return;
    run_on_leader(world, "reading the scale of the loss",
                  [&] { scaler_->load_state_dict(load_safetensors(checkpoint / kScalerFile).tensors); });
    const StateDict scale = scaler_->state_dict();
    for (const auto& [name, tensor] : scale)  // the same in number and form everywhere
      world.broadcast({tensor.data_ptr(), tensor.nbytes(), DType::u8}, 0);
    scaler_->load_state_dict(scale);
  }
  std::size_t state_bytes() const override { return optimizer_->state_bytes(); }
  std::optional<OffloadFigures> offload() const override { return optimizer_->offload(); }

 private:
  static constexpr const char* kScalerFile = "scaler.safetensors";

  std::unique_ptr<Optimizer> optimizer_;
  std::optional<GradScaler> scaler_;
};

class TorchOptimizer final : public TrainOptimizer {
 public:
  TorchOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer, Strategy* strategy,
                 std::size_t state_bytes)
      : optimizer_(std::move(optimizer)), strategy_(strategy), state_bytes_(state_bytes) {}

  void set_lr(double lr) override {
    for (auto& group : optimizer_->param_groups()) group.options().set_lr(lr);
  }
  bool step() override {
    if (strategy_ != nullptr) strategy_->synchronize();
    optimizer_->step();
    if (strategy_ != nullptr) strategy_->end_step();
    return true;
  }
  const GradScaler* scaler() const override { return nullptr; }
  void zero_grad() override { optimizer_->zero_grad(); }
  void save(SavedState& state, const SliceOwners&, const Group& world) override {
    if (world.rank() == 0)
      state.files.emplace_back(kFile,
                               [archive = bytes()](const fs::path& file) { write_file(file, archive); });
  }
  void load(const fs::path& checkpoint, const SliceOwners&, const Group& world) override {
    run_on_leader(world, "reading the optimizer's state", [&] {
      torch::serialize::InputArchive archive;
      archive.load_from((checkpoint / kFile).string());
      optimizer_->load(archive);
    });
    std::string state = world.rank() == 0 ? bytes() : "";
    world.broadcast(state, 0);
    if (world.rank() == 0) return;
    std::istringstream stream(state);
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    optimizer_->load(archive);
  }
  std::size_t state_bytes() const override { return state_bytes_; }
  std::optional<OffloadFigures> offload() const override { return std::nullopt; }

 private:
  static constexpr const char* kFile = "optimizer.pt";

  std::string bytes() {
    std::ostringstream stream;
    torch::serialize::OutputArchive archive;
    optimizer_->save(archive);
    archive.save_to(stream);
    return stream.str();
  }

  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  Strategy* strategy_;  // null: local
  std::size_t state_bytes_;
};

std::unique_ptr<torch::optim::Optimizer> make_torch(const TrainerOptions& o,
                                                    std::vector<torch::Tensor> parameters) {
  const double lr = o.schedule.lr, decay = o.weight_decay;
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

// Alone nobody exchanges momenta: onebit-adam is AdamW then, which takes as long.
template <class Source>
concept Exchanges = requires(Source& source) {
  source.exchange();
};

// `source`: the gradients' source, or a list of parameters. Who is left out of LARS and LAMB a group says.
template <class Source>
std::unique_ptr<Optimizer> make_plain(const TrainerOptions& o, Source&& source, const Offload& offload) {
  const double lr = o.schedule.lr, decay = o.weight_decay;
  const MasterWeights masters = keeps_masters(o) ? MasterWeights::f32 : MasterWeights::none;
  if (o.optimizer == "lars")
    return std::make_unique<LARS>(source, LARSOptions{.lr = lr,
                                                      .momentum = o.momentum,
                                                      .weight_decay = decay,
                                                      .trust_coefficient = o.trust_coefficient,
                                                      .trust_clip = o.trust_clip,
                                                      .vectors = true,
                                                      .master_weights = masters,
                                                      .offload = offload});
  if (o.optimizer == "lamb")
    return std::make_unique<LAMB>(source, LAMBOptions{.lr = lr,
                                                      .weight_decay = decay,
                                                      .trust_clip = o.trust_clip,
                                                      .vectors = true,
                                                      .master_weights = masters,
                                                      .offload = offload});
  if (o.optimizer == "sgd")
    return std::make_unique<SGD>(source, SGDOptions{.lr = lr,
                                                    .momentum = o.momentum,
                                                    .weight_decay = decay,
                                                    .nesterov = o.nesterov,
                                                    .master_weights = masters,
                                                    .offload = offload});
  if constexpr (Exchanges<Source>)
    if (o.optimizer == kOneBitAdam)
      return std::make_unique<OneBitAdam>(
          source, OneBitAdamOptions{.lr = lr, .weight_decay = decay, .master_weights = masters});
  if (o.optimizer == "adam")
    return std::make_unique<Adam>(
        source, AdamOptions{.lr = lr, .weight_decay = decay, .master_weights = masters, .offload = offload});
  return std::make_unique<AdamW>(
      source, AdamWOptions{.lr = lr, .weight_decay = decay, .master_weights = masters, .offload = offload});
}

template <class Source>
std::unique_ptr<Optimizer> make_own(const TrainerOptions& o, Source&& source,
                                    const std::vector<NamedTensor>& parameters, const Offload& offload) {
  std::unique_ptr<Optimizer> optimizer = make_plain(o, source, offload);
  optimizer->add_group(
      {.match = [names = excluded(o, parameters)](const std::string& name) { return names.contains(name); },
       .weight_decay = 0,
       .adapt = false});
  return optimizer;
}

// Momenta are of use to one optimizer alone.
void check_momenta(const TrainerOptions& o, const Exchange& exchange) {
  if (exchange.momenta && o.optimizer != kOneBitAdam)
    throw UsageError(option_text("optimizer", o.optimizer) +
                     " takes what comes for gradients, and the exchange " + exchange.name +
                     " brings momenta; accepted: onebit-adam");
}

bool is_torch(const TrainerOptions& o) { return o.optimizer.starts_with("torch-"); }

std::unique_ptr<TrainOptimizer> torch_optimizer(const TrainerOptions& o, const Strategy& strategy,
                                                Strategy* synchronized) {
  std::vector<torch::Tensor> tensors;
  for (const NamedTensor& p : strategy.parameters()) tensors.push_back(p.tensor);
  std::size_t bytes = 0;
  for (const torch::Tensor& tensor : tensors) bytes += static_cast<std::size_t>(tensor.nbytes());
  const std::size_t kinds = !o.optimizer.ends_with("sgd") ? 2 : o.momentum == 0 ? 0 : 1;
  return std::make_unique<TorchOptimizer>(make_torch(o, std::move(tensors)), synchronized, kinds * bytes);
}

}  // namespace

std::unique_ptr<TrainOptimizer> make_optimizer(const TrainerOptions& o, Strategy& strategy) {
  check_momenta(o, strategy.exchange());
  if (is_torch(o)) {
    const std::vector<NamedTensor> parameters = strategy.parameters();
    const std::span<const Slice> slices = strategy.slices();
    for (std::size_t i = 0; i < slices.size(); ++i)
      if (!slices[i].parameter.is_same(parameters[i].tensor))
        throw UsageError(option_text("optimizer", o.optimizer) + " updates whole parameters, and " +
                         option_text("strategy", o.strategy) +
                         " gives each worker a part of them; accepted: sgd, adam, adamw, lars, lamb");
    return torch_optimizer(o, strategy, &strategy);
  }
  return std::make_unique<OwnOptimizer>(make_own(o, strategy, strategy.parameters(), o.offload),
                                        scales_loss(o) ? std::optional(o.scaler) : std::nullopt);
}

std::unique_ptr<TrainOptimizer> make_local_optimizer(const TrainerOptions& o, Strategy& strategy) {
  if (is_torch(o)) return torch_optimizer(o, strategy, nullptr);
  const std::vector<NamedTensor> parameters = strategy.parameters();
  for (const NamedTensor& parameter : parameters)
    if (parameter.tensor.numel() > 0 && parameter.tensor.data_ptr() == nullptr)
      throw UsageError("'" + parameter.name + "' is gathered only while it is computed with (" +
                       option_text("strategy", o.strategy) +
                       " over this engine), so no worker can take a step alone; accepted: a strategy whose "
                       "parameters are there (ddp, zero1, zero2)");
  return std::make_unique<OwnOptimizer>(make_own(o, parameters, parameters, {}));
}

}  // namespace lockstep
