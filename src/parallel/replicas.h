// Do all ranks hold the same model? Its form (names, shapes, types), and its bits.
#pragma once

#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/grad/gradient_source.h"

namespace lockstep {

// Throws MismatchError naming the first tensor that differs between two ranks, and both sides. Collective.
void check_form(const Group& group, const std::vector<NamedTensor>& tensors);

// Warns, once and on rank 0, when the ranks compute with different numbers of threads: sums inside an
// operation may then depend on the rank. Collective.
void compare_threads(const Group& group, int threads);

// Whether every rank's are those of rank 0. Collective.
bool same_bits(const Group& group, const std::vector<NamedTensor>& tensors);

// Throws MismatchError naming the tensors whose bits differ and the ranks. Collective.
void check_bits(const Group& group, const std::vector<NamedTensor>& tensors);

// Every rank's tensors become rank 0's. Collective.
void broadcast_all(const Group& group, const std::vector<NamedTensor>& tensors);

}  // namespace lockstep
