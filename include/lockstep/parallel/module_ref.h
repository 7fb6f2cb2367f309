// What a strategy takes as a model.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <utility>

namespace lockstep {

class ModuleRef {
 public:
  // By shared_ptr or by its holder (torch::nn::Sequential, a TORCH_MODULE type): it lives as long as the
  // strategy does.
  template <class M>
  ModuleRef(std::shared_ptr<M> module) : module_(std::move(module)) {}  // NOLINT(google-explicit-constructor)
  template <class M>
  ModuleRef(const torch::nn::ModuleHolder<M>& holder)  // NOLINT(google-explicit-constructor)
      : module_(holder.is_empty() ? nullptr : std::shared_ptr<torch::nn::Module>(holder.ptr())) {}
  // By reference: a model on the stack, or a member. It outlives the strategy, so declare it before; one that
  // a shared_ptr owns is kept alive as above. Neither may be moved, nor lose parameters, meanwhile.
  ModuleRef(torch::nn::Module& module)  // NOLINT(google-explicit-constructor)
      : module_(module.weak_from_this().lock()) {
    // Where nobody owns it the pointer owns nothing either.
    if (module_ == nullptr) module_ = {std::shared_ptr<void>(), &module};
  }

  const std::shared_ptr<torch::nn::Module>& pointer() const { return module_; }  // null: of no module

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

}  // namespace lockstep
