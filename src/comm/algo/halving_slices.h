// The part of halving-doubling whose slices belong to ranks; see the .cc for the scheme.
#pragma once

#include "comm/algo/algorithm.h"

namespace lockstep {

void halve_slices(Stage& stage);   // reduce_scatter
void double_slices(Stage& stage);  // all_gather
Cost slices_cost_of_halving(const CallShape& shape);

}  // namespace lockstep
