// libtorch makes its default generator and its tables of operators when they are first used. Ranks that are
// threads would do so at the same time, which libtorch guards where ThreadSanitizer can't see it; so the main
// thread is first.
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

namespace {

[[maybe_unused]] const bool used = [] {
  torch::nn::Linear layer(2, 2);
  torch::nn::BatchNorm1d norm(2);
  norm(layer(torch::rand({2, 2}))).sum().backward();
  return true;
}();

}  // namespace
