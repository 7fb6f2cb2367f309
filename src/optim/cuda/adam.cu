#include "optim/cuda/rules.cuh"
#include "optim/cuda/sweep.cuh"
#include "optim/cuda/updates.h"

namespace lockstep::kernel::cuda {

void adam(std::span<const Elements> list, const AdamUpdate& how) { sweep_all<AdamRule>(list, how); }

}  // namespace lockstep::kernel::cuda
