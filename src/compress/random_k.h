// Random-k (Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, 2018): k elements, the same on every
// worker, drawn anew in each step from (seed, step, parameter), so that nothing but values travels: an
// all-reduce of k numbers in f32, in the canonical order, whatever the number of subtrees.
//
// Without error feedback what is sent is multiplied by n / k and right on average; with it (ef=on) it is sent
// as it is, and what was not chosen waits. State: none, or "owed" by subtree and parameter. Bytes: 4 k,
// all-reduced.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compress/method.h"

namespace lockstep::compress {

struct RandomKOptions {
  double ratio = 0.01;  // k is this part of the elements, 1 at least
  bool feedback = false;
};

std::unique_ptr<Method> random_k(std::string name, const RandomKOptions& options);

// The k of n elements that are sent, ascending.
std::vector<std::size_t> chosen(std::uint64_t seed, std::int64_t step, const std::string& parameter,
                                std::size_t n, std::size_t k);

}  // namespace lockstep::compress
