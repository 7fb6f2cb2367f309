// The loss of a classifier, and of a model of language.
#pragma once

#include <torch/types.h>

namespace lockstep {

// Mean cross entropy of logits [rows, classes] against a class a row, or [batch, tokens, classes] against
// [batch, tokens]; rows whose target is -100 don't count. On the processor it is libtorch's. On a GPU logits
// of f32, f16 and bf16 are read as they are, in two passes that compute in f32, and the loss is f32: no f32
// copy of 16-bit logits is made, which for a large vocabulary is more memory and time than all of a
// transformer's blocks. There a target that is no class makes the loss NaN. First gradients only.
// `label_smoothing`, from 0 to 1: so much of the target is every class alike, as in PyTorch; the loss is then
// libtorch's everywhere, in f32 for 16-bit logits on a GPU, and can't be less than such a target's entropy.
// Throws UsageError for another number.
torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& target,
                            double label_smoothing = 0);

}  // namespace lockstep
