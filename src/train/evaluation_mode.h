// A model in eval() for as long as this lives; then every module is in the mode that it was in, so that one
// which the program keeps in eval() (a frozen batch norm) stays there.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

namespace lockstep {

class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& model) : model_(model), trained_(model.is_training()) {
    for (const std::shared_ptr<torch::nn::Module>& module : model.modules(/*include_self=*/false))
      modes_.emplace_back(module, module->is_training());
    model.eval();
  }
  ~EvaluationMode() {
    model_.train(trained_);
    for (const auto& [module, trained] : modes_) module->train(trained);  // parents before their children
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& model_;
  bool trained_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

}  // namespace lockstep
