// Passes over the elements of one tensor that all methods share, in f32 and in a defined order: each element
// by itself, so that any machine and any compiler gets the same bits.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep::compress {

// Is every element finite?
bool all_finite(std::span<const float> x);

// x[i] *= scale.
void scale(std::span<float> x, float factor);

// Error feedback. `owed` is what was not sent so far, with the sign changed: x[i] = x[i] * scale - owed[i] is
// what there is to send, and owed[i] = -x[i], to which what is sent is then added.
void add_owed(std::span<float> x, float factor, std::span<float> owed);

// x[i] += y[i].
void add(std::span<float> x, std::span<const float> y);

void fill(std::span<float> x, float value);

// Σ x[i]², in f64: for figures.
double squares(std::span<const float> x);

}  // namespace lockstep::compress
