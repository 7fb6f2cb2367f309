// PowerSGD (Vogels, Karimireddy, Jaggi: PowerSGD, 2019): a gradient of n × m as the product of n × r and r ×
// m, by one step of power iteration that goes on from step to step.
//
//   M_s = g_s + e_s            per subtree s, with error feedback
//   P = Σ_s M_s Q              all-reduce of n r numbers
//   P = orthonormalised P      Gram-Schmidt, on every rank alike
//   Q_s = M_sᵀ P,  Q = Σ_s Q_s all-reduce of m r numbers; Q is kept for the next step (warm start)
//   mean = P Qᵀ,  e_s = M_s - P Q_sᵀ
//
// A tensor is a matrix of its first extent × the others; vectors, and matrices that r (n + m) numbers would
// not make smaller, travel as they are. Sums are canonical, so the bytes are the same whatever the number of
// subtrees. A column of Q that is zero is drawn anew, from (seed, step, parameter, element). State: "owed"
// (the error with its sign changed) by subtree and parameter, "q" by parameter. Biased, which the feedback
// makes up.
#pragma once

#include <memory>
#include <string>

#include "compress/method.h"

namespace lockstep::compress {

struct PowerSgdOptions {
  std::size_t rank = 4;
  bool feedback = true;
};

std::unique_ptr<Method> power_sgd(std::string name, const PowerSgdOptions& options);

}  // namespace lockstep::compress
