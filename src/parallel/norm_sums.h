// What batch norm adds up over workers: a few numbers for each channel, in f64 on the host, combined in rank
// order. Every rank has the same bits.
#pragma once

#include <torch/types.h>

#include <string>

#include "lockstep/comm/group.h"

namespace lockstep {

// Of the values of one channel each: their mean and their variance (the sum of squares by the count).
struct NormMoments {
  double count = 0;  // values of a channel
  torch::Tensor mean, variance;
};

// Over all ranks, of what each has in `input` [batch, channels, …]; one without `counts` has nothing.
// Collective. Throws UsageError on every rank where there is one value a channel, of which there is no
// variance. A count of 0: the moments are not to be used.
NormMoments moments_of_all(const Group& group, const torch::Tensor& input, bool counts,
                           const std::string& name);

// Two sums for each channel.
struct NormGradients {
  torch::Tensor plain;       // of the output's gradient
  torch::Tensor normalised;  // of its products with the normalised input
};

// Over all ranks, rank r's by weight_r / `weight`. A rank of weight 0 says nothing, and gets zeros.
// Collective.
NormGradients gradients_of_all(const Group& group, const NormGradients& own, double weight,
                               const std::string& name);

}  // namespace lockstep
