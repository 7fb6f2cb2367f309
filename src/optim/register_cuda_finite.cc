// The look for gradients that are not finite, on GPUs. Linking the library asks for the symbol below, as with
// engines.
#include "grad/finite.h"
#include "optim/cuda/updates.h"

extern "C" const bool lockstep_cuda_finite_is_linked;
const bool lockstep_cuda_finite_is_linked = [] {
  lockstep::add_device_finite(lockstep::Device::Kind::cuda, lockstep::kernel::cuda::mark_not_finite);
  return true;
}();
