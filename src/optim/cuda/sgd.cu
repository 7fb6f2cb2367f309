#include "optim/cuda/rules.cuh"
#include "optim/cuda/sweep.cuh"
#include "optim/cuda/updates.h"

namespace lockstep::kernel::cuda {
namespace {

template <class T>
using Plain = SgdRule<T, 0>;
template <class T>
using WithMomentum = SgdRule<T, 1>;

}  // namespace

void sgd(std::span<const Elements> list, const SgdUpdate& how) {
  if (how.kind == Momentum::none)
    sweep_all<Plain>(list, how);
  else
    sweep_all<WithMomentum>(list, how);
}

}  // namespace lockstep::kernel::cuda
