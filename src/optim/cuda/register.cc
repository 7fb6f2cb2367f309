// Linking lockstep_optim_cuda adds its kernels, as engines are added.
#include "optim/cuda/updates.h"

extern "C" const bool lockstep_optim_cuda_is_linked;
const bool lockstep_optim_cuda_is_linked = [] {
  namespace here = lockstep::kernel::cuda;
  constexpr auto kKind = lockstep::Device::Kind::cuda;
  lockstep::kernel::add_device_updates(kKind, {.sgd = here::sgd, .adam = here::adam});
  lockstep::kernel::add_device_norms(kKind,
                                     {.power_sums = here::power_sums, .partial_sums = here::partial_sums});
  lockstep::kernel::add_device_layers(
      kKind,
      {.measure_lars = here::measure_lars, .measure_lamb = here::measure_lamb, .lamb_step = here::step_lamb});
  return true;
}();
