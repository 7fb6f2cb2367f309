// The tensors of a module, by what becomes of them.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "lockstep/grad/gradient_source.h"

namespace lockstep {

// Parameters with a gradient. Tied weights once, under their first name.
std::vector<NamedTensor> trained_in(const torch::nn::Module& module);
// Parameters of floating point without.
std::vector<NamedTensor> frozen_in(const torch::nn::Module& module);
// All parameters and buffers, under each of their names.
std::vector<NamedTensor> everything_in(const torch::nn::Module& module);
std::vector<std::string> names_of(const std::vector<NamedTensor>& tensors);

// Throws UsageError where a parameter of the module has a gradient that nobody exchanges: it was not there
// when the model was wrapped.
void refuse_unknown(const std::string& strategy, const torch::nn::Module& module);
// Throws UsageError where one of `frozen` is trained now, and not by another strategy.
void refuse_unfrozen(const std::string& strategy, const std::vector<NamedTensor>& frozen);
// Throws UsageError where one of `before` is not trained any more.
void refuse_gone(const std::string& strategy, const torch::nn::Module& module,
                 const std::vector<NamedTensor>& before);

// Parameters that another strategy has left in memory which this worker has in common with others: each
// would update them there, so this one goes on with a copy of its own.
void leave_one_copy(const std::vector<NamedTensor>& parameters);

}  // namespace lockstep
