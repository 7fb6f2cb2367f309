// ResNet as torchvision has it (the stride of a bottleneck sits in its 3×3 convolution). Modules are made in
// torchvision's order, so that a generator with the same seed gives the same initial weights.
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <array>
#include <numeric>
#include <string>
#include <tuple>

#include "lockstep/models/models.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/parallel/units.h"
#include "models/check.h"
#include "models/fused.h"

namespace lockstep {
namespace {

using torch::nn::AnyModule;
using torch::nn::Conv2d;

constexpr std::int64_t kNormGroups = 32;

Conv2d conv(std::int64_t inputs, std::int64_t outputs, std::int64_t kernel, std::int64_t stride) {
  return Conv2d(
      torch::nn::Conv2dOptions(inputs, outputs, kernel).stride(stride).padding(kernel / 2).bias(false));
}

AnyModule make_norm(ResNetNorm norm, std::int64_t channels) {
  switch (norm) {
    case ResNetNorm::batch: return AnyModule(torch::nn::BatchNorm2d(channels));
    case ResNetNorm::sync: return AnyModule(SyncBatchNorm(channels));
    case ResNetNorm::group:
      return AnyModule(
          torch::nn::GroupNorm(torch::nn::GroupNormOptions(std::gcd(kNormGroups, channels), channels)));
  }
  throw UsageError("resnet: norm = " + std::to_string(static_cast<int>(norm)) +
                   "; accepted: batch, sync, group");
}

// A block's output for the next one's branch and for its shortcut: one tensor, or on a GPU twice over its
// memory.
struct Forked {
  torch::Tensor branch;
  torch::Tensor shortcut;
};

// The norm as the batch norm that a GPU's kernels take for `x`; null: it goes the common way.
torch::nn::BatchNorm2dImpl* fusable(AnyModule& norm, const torch::Tensor& x) {
  if constexpr (fused::kBuilt) {
    auto* const batch = x.is_cuda() ? norm.ptr()->as<torch::nn::BatchNorm2dImpl>() : nullptr;
    if (batch != nullptr && fused::takes(*batch, x)) return batch;
  }
  return nullptr;
}

torch::Tensor normalise(AnyModule& norm, const torch::Tensor& x) {
  if constexpr (fused::kBuilt)
    if (auto* const batch = fusable(norm, x)) return fused::batch_norm(*batch, x);
  return norm.forward(x);
}

torch::Tensor norm_relu(AnyModule& norm, const torch::Tensor& x) {
  if constexpr (fused::kBuilt)
    if (auto* const batch = fusable(norm, x)) return fused::batch_norm_relu(*batch, x);
  return norm.forward(x).relu_();
}

Forked pooled(const torch::Tensor& x) {
  if constexpr (fused::kBuilt)
    if (fused::takes_pooling(x)) {
      const auto [branch, shortcut] = fused::max_pool(x);
      return {branch, shortcut};
    }
  const torch::Tensor y = torch::max_pool2d(x, 3, 2, 1);
  return {y, y};
}

// A 1×1 convolution and a norm that give a block's input the shape of its output.
struct Downsample : torch::nn::Module {
  Downsample(std::int64_t inputs, std::int64_t outputs, std::int64_t stride, ResNetNorm kind)
      : convolution(register_module("0", conv(inputs, outputs, 1, stride))), norm(make_norm(kind, outputs)) {
    register_module("1", norm.ptr());
  }

  torch::Tensor forward(const torch::Tensor& x) { return normalise(norm, convolution->forward(x)); }

  Conv2d convolution;
  AnyModule norm;
};

struct BlockShape {
  std::int64_t inputs = 0;
  std::int64_t width = 0;
  std::int64_t stride = 1;
  bool bottleneck = false;
  ResNetNorm norm = ResNetNorm::batch;

  std::int64_t outputs() const { return bottleneck ? 4 * width : width; }
};

// Two 3×3 convolutions, or 1×1, 3×3, 1×1; each but the last is followed by ReLU, the sum as well.
class Block : public torch::nn::Module {
 public:
  explicit Block(const BlockShape& shape) {
    std::shared_ptr<Downsample> downsample;
    if (shape.stride != 1 || shape.inputs != shape.outputs()) {
      downsample = std::make_shared<Downsample>(shape.inputs, shape.outputs(), shape.stride, shape.norm);
    }
    if (shape.bottleneck) {
      add(shape.inputs, shape.width, 1, 1, shape.norm);
      add(shape.width, shape.width, 3, shape.stride, shape.norm);
      add(shape.width, shape.outputs(), 1, 1, shape.norm);
    } else {
      add(shape.inputs, shape.width, 3, shape.stride, shape.norm);
      add(shape.width, shape.width, 3, 1, shape.norm);
    }
    if (downsample) downsample_ = register_module("downsample", downsample);
  }

  Forked forward(const Forked& x) {
    const std::size_t last = convolutions_.size() - 1;
    torch::Tensor y = x.branch;
    for (std::size_t i = 0; i < last; ++i) y = norm_relu(norms_[i], convolutions_[i]->forward(y));
    y = convolutions_[last]->forward(y);
    if constexpr (fused::kBuilt)
      if (auto* const batch = fusable(norms_[last], y)) {
        const auto [branch, shortcut] = fused::batch_norm_add_relu(*batch, y, beside(x));
        return {branch, shortcut};
      }
    y = norms_[last].forward(y);
    y.add_(beside(x)).relu_();
    return {y, y};
  }
  torch::Tensor forward(const torch::Tensor& x) { return forward(Forked{x, x}).branch; }

 private:
  torch::Tensor beside(const Forked& x) {
    return downsample_ ? downsample_->forward(x.shortcut) : x.shortcut;
  }

  void add(std::int64_t inputs, std::int64_t outputs, std::int64_t kernel, std::int64_t stride,
           ResNetNorm norm) {
    const std::string number = std::to_string(convolutions_.size() + 1);
    convolutions_.push_back(register_module("conv" + number, conv(inputs, outputs, kernel, stride)));
    norms_.push_back(make_norm(norm, outputs));
    register_module("bn" + number, norms_.back().ptr());
  }

  std::vector<Conv2d> convolutions_;
  std::vector<AnyModule> norms_;
  std::shared_ptr<Downsample> downsample_;
};

class ResNet final : public Model {
 public:
  explicit ResNet(const ResNetOptions& options)
      : cifar_stem_(options.cifar_stem),
        conv1_(register_module(
            "conv1", cifar_stem_ ? conv(3, options.channels, 3, 1) : conv(3, options.channels, 7, 2))),
        bn1_(make_norm(options.norm, options.channels)) {
    register_module("bn1", bn1_.ptr());
    stem_ = Unit({conv1_.ptr(), bn1_.ptr()});
    const std::array<int, 4> counts = options.depth == 18 ? std::array{2, 2, 2, 2} : std::array{3, 4, 6, 3};
    BlockShape shape{.inputs = options.channels,
                     .width = options.channels,
                     .stride = 1,
                     .bottleneck = options.depth == 50,
                     .norm = options.norm};
    for (std::size_t stage = 0; stage < counts.size(); ++stage) {
      const auto layer = std::make_shared<torch::nn::Module>();
      for (int i = 0; i < counts[stage]; ++i) {
        shape.stride = stage > 0 && i == 0 ? 2 : 1;
        blocks_.push_back(shard(layer->register_module(std::to_string(i), std::make_shared<Block>(shape))));
        shape.inputs = shape.outputs();
      }
      register_module("layer" + std::to_string(stage + 1), layer);
      shape.width *= 2;
    }
    fc_ = register_module("fc", torch::nn::Linear(shape.inputs, options.classes));
    output_ = shard(fc_);
    // In the order of the modules, unit by unit: each may be in parts again before the next.
    initialise(stem_, [this] { initialise_convolution(*conv1_); });
    for (const auto& block : blocks_)
      initialise(block, [&] {
        for (const auto& module : block->modules(/*include_self=*/false))
          if (auto* convolution = module->as<torch::nn::Conv2dImpl>()) initialise_convolution(*convolution);
      });
  }

  torch::Tensor forward(torch::Tensor x) override {
    // Whose activations are computed again goes the way of units, wherever it is.
    if (x.is_cuda() && !detail::recomputes(*stem_.point())) return forward_on_gpu(x);
    x = stem_.run([this](const torch::Tensor& y) { return bn1_.forward(conv1_->forward(y)).relu_(); }, x);
    if (!cifar_stem_) x = torch::max_pool2d(x, 3, 2, 1);
    for (const auto& block : blocks_) x = block.forward(x);
    return output_.forward(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

 private:
  static void initialise_convolution(torch::nn::Conv2dImpl& convolution) {
    torch::nn::init::kaiming_normal_(convolution.weight, 0, torch::kFanOut, torch::kReLU);
  }

  torch::Tensor forward_on_gpu(torch::Tensor x) {
    // Channels-last is what tensor cores want; every convolution then gives it on, whatever the weights'
    // layout.
    x = x.contiguous(torch::MemoryFormat::ChannelsLast);
    x = stem_.run([this](const torch::Tensor& image) { return norm_relu(bn1_, conv1_->forward(image)); }, x);
    Forked y = cifar_stem_ ? Forked{x, x} : pooled(x);
    for (const auto& block : blocks_)
      std::tie(y.branch, y.shortcut) = block.unit().run(
          [here = &*block](const torch::Tensor& branch, const torch::Tensor& shortcut) {
            const Forked both = here->forward(Forked{branch, shortcut});
            return std::tuple(both.branch, both.shortcut);
          },
          y.branch, y.shortcut);
    return output_.forward(torch::adaptive_avg_pool2d(y.branch, {1, 1}).flatten(1));
  }

  bool cifar_stem_;
  Conv2d conv1_;
  AnyModule bn1_;
  std::vector<UnitOf<Block>> blocks_;  // of all four layers, in order
  torch::nn::Linear fc_{nullptr};
  Unit stem_;
  UnitOf<torch::nn::LinearImpl> output_;
};

}  // namespace

std::shared_ptr<Model> make_resnet(ResNetOptions options) {
  if (options.depth != 18 && options.depth != 34 && options.depth != 50) {
    throw UsageError("resnet: depth = " + std::to_string(options.depth) + "; accepted: 18, 34, 50");
  }
  check_positive("resnet", "classes", options.classes);
  check_positive("resnet", "channels", options.channels);
  return std::make_shared<ResNet>(options);
}

}  // namespace lockstep
