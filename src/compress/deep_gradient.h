// Deep gradient compression (Lin, Han, Mao, Wang, Dally: Deep Gradient Compression, 2018), on top of top-k.
//
//   g        the subtree's gradient, scaled down where its norm is above clip / √n, n the number of subtrees
//   u = m u + g,  v = v + u      momentum correction: momentum is taken before the selection, and adds up
//   send the largest of v; where something was sent u = v = 0      momentum factor masking
//
// So the optimizer has no momentum of its own. The share that is kept falls in the first steps: 25 %, 6.25 %,
// 1.5625 %, 0.4 %, and then what was asked for. Clipping is tensor by tensor: all of a gradient is not there
// before the first bucket leaves. State: "velocity" (u) and "pending" (v) by subtree and parameter. Biased;
// bytes: those of top-k.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "compress/recall.h"

namespace lockstep::compress {

struct DeepGradientOptions {
  double momentum = 0.9;
  double clip = 0;  // 0: none
};

std::unique_ptr<Recall> deep_gradient(const DeepGradientOptions& options);

// The shares that are kept on the way to `ratio`, which is the last.
std::vector<double> ratios_to(double ratio);
// Which of so many stages a step is in, when all but the last take `rampup` steps together.
std::size_t stage_of(std::int64_t step, std::int64_t rampup, std::size_t stages);

}  // namespace lockstep::compress
