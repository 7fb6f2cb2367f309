#include "lockstep/models/cross_entropy.h"

#include <ATen/ATen.h>

#include "models/fused.h"

namespace lockstep {

torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& target) {
  if (logits.dim() == 3) return cross_entropy(logits.flatten(0, 1), target.flatten());
  if constexpr (fused::kBuilt)
    if (fused::takes_logits(logits, target)) return fused::cross_entropy(logits, target);
  return at::cross_entropy_loss(logits, target);
}

}  // namespace lockstep
