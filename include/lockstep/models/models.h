// The models that come along. Parameter names and shapes are torchvision's for ResNet, so that weights travel
// both ways.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// A module with one input and one output.
class Model : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(torch::Tensor x) = 0;
};

// What ResNet normalises its channels by, under the same names.
enum class ResNetNorm : std::uint8_t {
  batch,  // over a lane's samples: torch::nn::BatchNorm2d
  sync,   // over the samples of all workers: parallel/sync_batch_norm.h
  group,  // over groups of channels of each sample, 32 of them: torch::nn::GroupNorm, which has no buffers
};

// Images [batch, 3, height, width] in, logits [batch, classes] out. Names, shapes, forward and initialisation
// are torchvision's: libtorch's generator at the same seed gives the same weights as in Python.
struct ResNetOptions {
  int depth = 18;  // 18, 34 or 50
  std::int64_t classes = 10;
  std::int64_t channels = 64;  // of the first layer; the last has eight times as many. Torchvision's: 64
  bool cifar_stem = false;     // a 3×3 first convolution and no pooling, for 32×32 images
  ResNetNorm norm = ResNetNorm::batch;
};
std::shared_ptr<Model> make_resnet(ResNetOptions options = {});

// Pre-norm causal transformer over bytes or tokens [batch, up to context]; forward gives logits
// [batch, context, vocabulary]. Embeddings and projections begin at N(0, 0.02), those that end a residual
// branch at 0.02 / √(2 × blocks). The causal mask is no buffer: it is in no checkpoint and no hash.
struct GptOptions {
  std::int64_t blocks = 6;
  std::int64_t width = 256;
  std::int64_t heads = 8;
  std::int64_t context = 128;
  std::int64_t vocabulary = 256;
  double dropout = 0;     // on embeddings, attention weights and residual branches; below 1
  bool head_bias = true;  // of the last projection, to the vocabulary
  // The last projection's matrix is the embedding's, one parameter in two units, and there is no bias.
  bool tied_embeddings = false;
};
std::shared_ptr<Model> make_gpt(GptOptions options = {});

// `layers` hidden layers of `width` with ReLU, then a linear head. The input is flattened.
struct MlpOptions {
  std::int64_t inputs = 1024;
  std::int64_t width = 1024;
  std::int64_t layers = 8;
  std::int64_t classes = 10;
};
std::shared_ptr<Model> make_mlp(MlpOptions options = {});

// For a model chosen by name. ResNet's depth comes from the name.
struct ModelOptions {
  ResNetOptions resnet;
  GptOptions gpt;
  MlpOptions mlp;
};
std::vector<std::string> model_names();  // resnet18, resnet34, resnet50, gpt, mlp
// Throws UsageError that lists the names. So do the four above for an option out of range.
std::shared_ptr<Model> make_model(std::string_view name, const ModelOptions& options = {});

}  // namespace lockstep
