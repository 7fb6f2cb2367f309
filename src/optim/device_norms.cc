#include "optim/device_norms.h"

#include <array>

#include "optim/layer_kernels.h"

namespace lockstep::kernel {
namespace {

// In a function, so that it is there before the first static object that adds some.
std::array<DeviceNorms, kDeviceKinds>& all() {
  static std::array<DeviceNorms, kDeviceKinds> norms;
  return norms;
}

std::array<DeviceLayers, kDeviceKinds>& all_layers() {
  static std::array<DeviceLayers, kDeviceKinds> layers;
  return layers;
}

}  // namespace

void add_device_layers(Device::Kind kind, DeviceLayers layers) {
  all_layers()[static_cast<std::size_t>(kind)] = layers;
}

const DeviceLayers* device_layers(Device::Kind kind) {
  const DeviceLayers& layers = all_layers()[static_cast<std::size_t>(kind)];
  return layers.lamb_step == nullptr ? nullptr : &layers;
}

void add_device_norms(Device::Kind kind, DeviceNorms norms) { all()[static_cast<std::size_t>(kind)] = norms; }

const DeviceNorms* device_norms(Device::Kind kind) {
  const DeviceNorms& norms = all()[static_cast<std::size_t>(kind)];
  return norms.power_sums == nullptr ? nullptr : &norms;
}

}  // namespace lockstep::kernel
