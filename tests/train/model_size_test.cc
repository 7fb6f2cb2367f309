// A model as the arithmetic of memory sees it: counted, not computed from its options.
#include "train/model_size.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/models/models.h"
#include "lockstep/models/precision.h"

namespace lockstep {
namespace {

TEST(ModelSize, AUnitIsABlock) {
  const double w = 32, vocabulary = 256, context = 16;
  const auto gpt = make_gpt({.blocks = 3, .width = 32, .heads = 4, .context = 16, .vocabulary = 256});
  const double block = 12 * w * w + 13 * w;
  const double rest = (vocabulary + context) * w + 2 * w + w * vocabulary + vocabulary;
  ModelSize size = model_size(*gpt);
  EXPECT_EQ(size.count(), 3 * block + rest);
  EXPECT_EQ(size.largest_tensor.count, w * vocabulary);
  EXPECT_EQ(size.largest_unit_bytes, 4 * rest);  // so small a block is less than what is in none
  to_low_precision(*gpt, torch::kBFloat16);
  size = model_size(*gpt);
  ASSERT_EQ(size.parameters.size(), 1u);
  EXPECT_EQ(size.parameters[0].element_bytes, 2);
  EXPECT_EQ(size.largest_unit_bytes, 2 * rest);
  const double wide = 128;
  const auto larger = make_gpt({.blocks = 2, .width = 128, .heads = 4, .context = 16, .vocabulary = 256});
  EXPECT_EQ(model_size(*larger).largest_unit_bytes, 4 * (12 * wide * wide + 13 * wide));
  // Layers of an MLP are numbered themselves.
  EXPECT_EQ(model_size(*make_mlp({.inputs = 8, .width = 10, .layers = 2, .classes = 3})).largest_unit_bytes,
            4 * (10 * 10 + 10));
}

TEST(ModelSize, BatchNormStaysWide) {
  const auto resnet = make_resnet({.depth = 18, .classes = 10, .channels = 8});
  const double count = model_size(*resnet).count();
  to_low_precision(*resnet, torch::kBFloat16);
  const ModelSize size = model_size(*resnet);
  ASSERT_EQ(size.parameters.size(), 2u);
  double wide = 0;
  for (const ParameterKind& kind : size.parameters)
    if (kind.element_bytes == 4) wide += kind.count;
  EXPECT_EQ(wide, 2 * (8 * 5 + 16 * 5 + 32 * 5 + 64 * 5));  // a weight and a bias a channel of each norm
  EXPECT_EQ(size.count(), count);
}

struct Tied : torch::nn::Module {
  Tied()
      : embedding(register_module("embedding", torch::nn::Embedding(10, 4))),
        frozen(register_module("frozen", torch::nn::Linear(4, 4))) {
    register_parameter("head", embedding->weight);
    frozen->weight.set_requires_grad(false);
  }
  torch::nn::Embedding embedding;
  torch::nn::Linear frozen;
};

TEST(ModelSize, TiedParametersCountOnceAndFrozenOnesApart) {
  const ModelSize size = model_size(Tied());
  EXPECT_EQ(size.count(), 40 + 16 + 4);
  ASSERT_EQ(size.parameters.size(), 2u);
  for (const ParameterKind& kind : size.parameters) EXPECT_EQ(kind.count, kind.trained ? 44 : 16);
}

}  // namespace
}  // namespace lockstep
