#include <torch/nn/modules/linear.h>

#include <string>

#include "lockstep/models/models.h"
#include "lockstep/parallel/units.h"
#include "models/check.h"

namespace lockstep {
namespace {

class Mlp final : public Model {
 public:
  explicit Mlp(const MlpOptions& options) {
    std::int64_t inputs = options.inputs;
    for (std::int64_t i = 0; i <= options.layers; ++i) {
      const std::int64_t outputs = i < options.layers ? options.width : options.classes;
      // The names of nn.Sequential(Linear, ReLU, Linear, …): a ReLU takes every second number.
      layers_.push_back(shard(register_module(std::to_string(2 * i), torch::nn::Linear(inputs, outputs))));
      inputs = outputs;
    }
  }

  torch::Tensor forward(torch::Tensor x) override {
    x = x.flatten(1);
    for (std::size_t i = 0; i + 1 < layers_.size(); ++i) x = layers_[i].forward(x).relu_();
    return layers_.back().forward(x);
  }

 private:
  std::vector<UnitOf<torch::nn::LinearImpl>> layers_;
};

}  // namespace

std::shared_ptr<Model> make_mlp(MlpOptions options) {
  check_positive("mlp", "inputs", options.inputs);
  check_positive("mlp", "width", options.width);
  check_positive("mlp", "classes", options.classes);
  if (options.layers < 0) {
    throw UsageError("mlp: layers = " + std::to_string(options.layers) + "; accepted: 0 or more");
  }
  return std::make_shared<Mlp>(options);
}

}  // namespace lockstep
