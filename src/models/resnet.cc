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

#include "lockstep/models/models.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "models/check.h"

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

// A 1×1 convolution and a norm that give a block's input the shape of its output.
struct Downsample : torch::nn::Module {
  Downsample(std::int64_t inputs, std::int64_t outputs, std::int64_t stride, ResNetNorm kind)
      : convolution(register_module("0", conv(inputs, outputs, 1, stride))), norm(make_norm(kind, outputs)) {
    register_module("1", norm.ptr());
  }

  torch::Tensor forward(const torch::Tensor& x) { return norm.forward(convolution->forward(x)); }

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

  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = x;
    for (std::size_t i = 0; i < convolutions_.size(); ++i) {
      if (i > 0) y.relu_();
      y = norms_[i].forward(convolutions_[i]->forward(y));
    }
    return y.add_(downsample_ ? downsample_->forward(x) : x).relu_();
  }

 private:
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
        blocks_.push_back(layer->register_module(std::to_string(i), std::make_shared<Block>(shape)));
        shape.inputs = shape.outputs();
      }
      register_module("layer" + std::to_string(stage + 1), layer);
      shape.width *= 2;
    }
    fc_ = register_module("fc", torch::nn::Linear(shape.inputs, options.classes));
    for (const auto& module : modules(/*include_self=*/false)) {
      if (auto* convolution = module->as<torch::nn::Conv2dImpl>()) {
        torch::nn::init::kaiming_normal_(convolution->weight, 0, torch::kFanOut, torch::kReLU);
      }
    }
  }

  torch::Tensor forward(torch::Tensor x) override {
    x = bn1_.forward(conv1_->forward(x)).relu_();
    if (!cifar_stem_) x = torch::max_pool2d(x, 3, 2, 1);
    for (const auto& block : blocks_) x = block->forward(x);
    return fc_->forward(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

 private:
  bool cifar_stem_;
  Conv2d conv1_;
  AnyModule bn1_;
  std::vector<std::shared_ptr<Block>> blocks_;  // of all four layers, in order
  torch::nn::Linear fc_{nullptr};
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
