// Inputs whose results are known exactly, so that a benchmark never times a wrong answer.
//
// Every rank's input is a pattern of small integers that depends on the rank and the index; the period is
// prime, so data that ends up in the wrong place, or from the wrong rank, is noticed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/op.h"

namespace lockstep {

inline constexpr std::size_t kPatternPeriod = 251;

// Element `index` of rank `rank`'s input: 1 to 7, or 1 to 2 when it will be multiplied. Where it will be
// added, -6 to 6, and so is the sum of any ranks that follow each other: bf16 rounds above 256.
int pattern_value(int rank, std::size_t index, ReduceOp op);

// Writes the elements [first, first + count) of a rank's input to `data`.
void fill_pattern(void* data, std::size_t count, DType dtype, ReduceOp op, int rank, std::size_t first = 0);

// What one rank checks after a call.
struct Expectation {
  BenchOp what = BenchOp::all_reduce;
  int rank = 0;
  int workers = 1;
  int root = 0;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  Extent extent;
};

// The first element of `out` that is not what it must be, in words; empty when all is right (or when
// nothing is expected on this rank).
std::optional<std::string> find_mistake(const void* out, const Expectation& expected);

// Elements of the input and the output of a rank; 0 where it has none.
std::size_t input_count(const Expectation& e);
std::size_t output_count(const Expectation& e);

}  // namespace lockstep
