// 8 bits with one scale for all, and integer sums (Mishchenko, Wang, Kovalev, Richtárik: IntSGD, 2021; the
// scale is the largest magnitude of the step, agreed beforehand, in place of the paper's running one).
//
//   m       the largest |value| of the tensor over all subtrees: an all-reduce of one number a tensor
//   q_s     value × ⌊127 / n⌋ / m, rounded up or down at random so that it is right on average; n: subtrees
//   result  (Σ q_s) × m / ⌊127 / n⌋: an all-reduce of i8, which no order changes, so that any algorithm
//   carries
//           it, and which can't overflow
//
// State: none. Unbiased. Bytes: 1 an element and 4 a tensor, all-reduced, whatever the number of subtrees;
// more subtrees have fewer levels each.
#pragma once

#include <memory>
#include <string>

#include "compress/method.h"

namespace lockstep::compress {

std::unique_ptr<Method> shared_int(std::string name);

}  // namespace lockstep::compress
