// What optimizers need on the GPU: DeviceUpdates (update.h), DeviceNorms (device_norms.h), DeviceLayers
// (layer_kernels.h) and the look for what is not finite (grad/finite.h).
#pragma once

#include <cstdint>
#include <span>

#include "optim/device_norms.h"
#include "optim/layer_kernels.h"
#include "optim/update.h"

namespace lockstep::kernel::cuda {

void sgd(std::span<const Elements> list, const SgdUpdate& how);
void adam(std::span<const Elements> list, const AdamUpdate& how);

void power_sums(std::span<const ConstBuffer> list, double p, double* sums, double* partials);
std::size_t partial_sums(std::size_t count);

void mark_not_finite(std::span<const Buffer> list, std::int32_t* found);

void measure_lars(std::span<const LayerPart> parts, const LayerSums& to);
void measure_lamb(std::span<const LayerPart> parts, const LambUpdate& lamb, const LayerSums& to);
void step_lamb(std::span<const Elements> list, const LambUpdate& lamb, double rate);

}  // namespace lockstep::kernel::cuda
