// Gradients in fewer bytes, with the same bits on any number of workers.
//
//   DataParallel ddp(model, world, {.exchange = compressed({.method = "topk:0.01", .lanes = 8})});
//
// docs/compression.md has the methods. A run that compresses cuts its lanes' tree into subtrees
// (grad/subtrees.h). Inside a subtree gradients are added up as they are, in the canonical order; each
// subtree's sum is compressed once, with what is remembered of it (error, momentum) kept by subtree and
// parameter; and what is decompressed is added up along the rest of the tree. So the bits belong to the run,
// not to the workers that carry it, and what is remembered moves with its subtrees when other workers go on.
//
// The method onebit-adam leaves momenta in place of means, and is of use to OneBitAdam alone
// (optim/onebit_adam.h).
//
// Buckets of f32, f16 and bf16, on the processor; 16-bit sums are widened to f32 first. f64 travels as it is.
// A gradient that is not finite makes the mean of its parameter NaN on every rank, and what is remembered of
// it stays as it was.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/grad/exchange.h"

namespace lockstep {

struct CompressOptions {
  // METHOD[:OPTIONS], and in front of it rules by name: "tok.*=topk:0.001,powersgd:rank=4". The first rule
  // that has the parameter's name counts. "auto": by what is measured in the first steps, and now and then
  // again (docs/compression.md).
  std::string method;
  // Subtrees: a power of two, no more than lanes (the next power of two). 0: as many as workers at the start,
  // or the next power of two.
  int groups = 0;
  int lanes = 0;                   // of the run; 0: one a worker, for loops without lanes
  std::uint64_t seed = 0;          // of random rounding and choice
  double max_error = 0.05;         // that auto accepts: relative, of a subtree's sums
  std::int64_t probe_every = 500;  // steps, at most, until auto looks again; 10 or more, or 0: never
};

// Throws UsageError for a method, a rule or a number that is none, at once; for a rule that no parameter has,
// and a number of groups that the lanes don't have, when a model is wrapped. Each exchange that it makes is
// of one model: what is remembered is by parameter.
std::function<Exchange(Exchange::Leaves)> compressed(CompressOptions options);

// Names of the methods, for help.
std::vector<std::string> compression_methods();

}  // namespace lockstep
