#include "lockstep/models/cross_entropy.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "models/fused.h"

namespace lockstep {

torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& target,
                            double label_smoothing) {
  if (!(label_smoothing >= 0 && label_smoothing <= 1))
    throw UsageError(
        fmt::format("cross_entropy: label_smoothing is {}; accepted: from 0 to 1", label_smoothing));
  if (logits.dim() == 3) return cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing);
  if (label_smoothing == 0) {
    if constexpr (fused::kBuilt)
      if (fused::takes_logits(logits, target)) return fused::cross_entropy(logits, target);
    return at::cross_entropy_loss(logits, target);
  }
  const bool narrow = !logits.is_cpu() && logits.element_size() < 4;
  return at::cross_entropy_loss(narrow ? logits.to(torch::kFloat) : logits, target, {}, at::Reduction::Mean,
                                -100, label_smoothing);
}

}  // namespace lockstep
