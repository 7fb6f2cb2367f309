// Norms of gradients that lie on a device, taken there: the sums are f64, in an order that follows from the
// number of elements alone.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/comm/buffer.h"

namespace lockstep::kernel {

// All in the order of the device's current stream, nothing is waited for.
struct DeviceNorms {
  // sums[i], on the device: the sum of |x|^p over the elements of list[i]; of an infinite p the largest |x|,
  // or NaN where one is. `partials`: room there for as many f64 as partial_sums() says of all of them.
  void (*power_sums)(std::span<const ConstBuffer> list, double p, double* sums, double* partials) = nullptr;
  std::size_t (*partial_sums)(std::size_t count) = nullptr;
};
void add_device_norms(Device::Kind kind, DeviceNorms norms);  // once a kind, before main or from it
// Null: there are none.
const DeviceNorms* device_norms(Device::Kind kind);

}  // namespace lockstep::kernel
