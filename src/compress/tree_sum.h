// Adds up what comes out of `n` leaves along the canonical tree (docs/algorithms.md): tree(x_0 … x_{n-1}) =
// tree(first p) + tree(rest), p the largest power of two below n. A leaf that is not there adds nothing.
#pragma once

#include <bit>
#include <cstddef>
#include <span>
#include <vector>

#include "compress/arithmetic.h"

namespace lockstep::compress {

// there(i): is there a leaf i? put(i, to): `to` becomes its elements; put_added(i, to): they are added to
// `to`. False when there is none: `out` is negative zeros then.
template <class There, class Put, class PutAdded>
bool tree_sum(std::size_t n, std::span<float> out, const There& there, const Put& put,
              const PutAdded& put_added) {
  const auto sum = [&](const auto& self, std::size_t first, std::size_t count, std::span<float> to) -> bool {
    if (count == 1) {
      if (!there(first)) return false;
      put(first, to);
      return true;
    }
    const std::size_t left = std::bit_floor(count - 1);
    if (!self(self, first, left, to)) return self(self, first + left, count - left, to);
    if (count - left == 1) {
      if (there(first + left)) put_added(first + left, to);
      return true;
    }
    std::vector<float> right(to.size());
    if (self(self, first + left, count - left, right)) add(to, right);
    return true;
  };
  if (n > 0 && sum(sum, 0, n, out)) return true;
  fill(out, -0.0f);
  return false;
}

// The same of sums that lie in memory, in place: the first of those that are there becomes the sum, and is
// returned; null for none.
template <class There>
float* tree_sum_in_place(std::span<float* const> sums, std::size_t offset, std::size_t count,
                         const There& there) {
  std::vector<float*> level;
  for (std::size_t k = 0; k < sums.size(); ++k) level.push_back(there(k) ? sums[k] + offset : nullptr);
  while (level.size() > 1) {
    std::vector<float*> next;
    for (std::size_t k = 0; k < level.size(); k += 2) {
      float* const a = level[k];
      float* const b = k + 1 < level.size() ? level[k + 1] : nullptr;
      if (a != nullptr && b != nullptr) add({a, count}, {b, count});
      next.push_back(a != nullptr ? a : b);
    }
    level = std::move(next);
  }
  return level.empty() ? nullptr : level[0];
}

}  // namespace lockstep::compress
