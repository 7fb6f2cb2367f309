// The momentum in place of the gradient (Tang et al.: 1-bit Adam, 2021, algorithm 1), with error feedback:
//
//   m_s = β₁ m / n + (1 - β₁) g_s        per subtree s of n, so that Σ_s m_s = β₁ m + (1 - β₁) g
//   send C(m_s + e_s),  e_s = m_s + e_s - C(m_s + e_s)
//   m = what is made of Σ_s C(…): on the second side C once more, with an error of its own (gathered.h)
//
// m is the same on every rank. A subtree without a gradient in a step in which others have one sends nothing:
// all know that its share is β₁ m / n. State: "owed" (the error with its sign changed) by subtree and
// parameter, "momentum" by parameter.
#pragma once

#include <memory>

#include "compress/recall.h"

namespace lockstep::compress {

inline constexpr const char* kMomentum = "momentum";

std::unique_ptr<Recall> momentum_feedback(double beta1);

}  // namespace lockstep::compress
