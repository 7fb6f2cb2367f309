// Cross entropy of rows of logits against one class each, without a copy of the logits: f32 inside, whatever
// their type.
//
//   loss = mean over rows with a target of  log Σ exp(logit) - logit[target]
//
// With logits of E bytes forward reads E, backward reads E and writes E. A block takes a row; the mean is one
// block's, in one order.
#pragma once

#include <cuda_runtime_api.h>

#include "models/cuda/element.h"

namespace lockstep::gpu {

struct CrossEntropyForward {
  Element element = Element::f32;
  std::int64_t rows = 0;
  std::int64_t classes = 0;
  const void* logits = nullptr;
  const std::int64_t* target = nullptr;  // a row's class, or `ignored`; any other number makes the loss NaN
  std::int64_t ignored = -100;
  float* log_sum = nullptr;  // a row: log Σ exp
  float* losses = nullptr;   // a row; workspace
  float* mean = nullptr;     // [0] the loss, [1] one over the number of rows that count
};
void cross_entropy_forward(const CrossEntropyForward& forward, cudaStream_t stream);

struct CrossEntropyBackward {
  Element element = Element::f32;
  std::int64_t rows = 0;
  std::int64_t classes = 0;
  const void* logits = nullptr;
  const std::int64_t* target = nullptr;
  std::int64_t ignored = -100;
  const float* log_sum = nullptr;
  const float* mean = nullptr;    // as forward left it
  const float* d_loss = nullptr;  // one number
  void* d_logits = nullptr;
};
void cross_entropy_backward(const CrossEntropyBackward& backward, cudaStream_t stream);

}  // namespace lockstep::gpu
