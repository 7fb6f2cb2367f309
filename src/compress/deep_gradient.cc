#include "compress/deep_gradient.h"

#include <cmath>

#include "compress/arithmetic.h"

namespace lockstep::compress {
namespace {

class DeepGradient final : public Recall {
 public:
  explicit DeepGradient(const DeepGradientOptions& options) : options_(options) {}

  void declare(MemoryBook& book, const NamedTensor& parameter) const override {
    book.declare_by_subtree("velocity", parameter.name, parameter.tensor.sizes().vec());
    book.declare_by_subtree("pending", parameter.name, parameter.tensor.sizes().vec());
  }

  void prepare(MemoryBook& book, int subtree, const BucketTensor& tensor, std::span<float> sum,
               float inverse) const override {
    scale(sum, inverse);
    if (options_.clip > 0) {
      // The sum is an n-th of the subtree's own gradient, whose norm is held against clip / √n.
      const double n = book.subtrees().existing();
      const double norm = n * std::sqrt(squares(sum));
      const double most = options_.clip / std::sqrt(n);
      if (norm > most) scale(sum, static_cast<float>(most / norm));
    }
    const std::span<float> velocity = book.of("velocity", subtree, tensor.name);
    const std::span<float> pending = book.of("pending", subtree, tensor.name);
    const auto momentum = static_cast<float>(options_.momentum);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      velocity[i] = momentum * velocity[i] + sum[i];
      pending[i] += velocity[i];
      sum[i] = pending[i];
    }
  }

  void settle(MemoryBook& book, int subtree, const BucketTensor& tensor, const Codec& codec,
              std::span<const std::byte> payload) const override {
    const std::span<float> velocity = book.of("velocity", subtree, tensor.name);
    const std::span<float> pending = book.of("pending", subtree, tensor.name);
    std::vector<float> sent(pending.size());
    codec.decode(payload, sent);
    for (std::size_t i = 0; i < sent.size(); ++i)
      if (sent[i] != 0) velocity[i] = pending[i] = 0;
  }
  bool put_absent(MemoryBook&, const BucketTensor&, std::span<float>) const override { return false; }
  void keep(MemoryBook&, const BucketTensor&, std::span<const float>) const override {}

 private:
  DeepGradientOptions options_;
};

}  // namespace

std::unique_ptr<Recall> deep_gradient(const DeepGradientOptions& options) {
  return std::make_unique<DeepGradient>(options);
}

std::vector<double> ratios_to(double ratio) {
  std::vector<double> ratios;
  for (const double stage : {0.25, 0.0625, 0.015625, 0.004})
    if (stage > ratio) ratios.push_back(stage);
  ratios.push_back(ratio);
  return ratios;
}

std::size_t stage_of(std::int64_t step, std::int64_t rampup, std::size_t stages) {
  if (step >= rampup) return stages - 1;
  const double done = static_cast<double>(step) / static_cast<double>(rampup);
  return static_cast<std::size_t>(done * static_cast<double>(stages - 1));
}

}  // namespace lockstep::compress
