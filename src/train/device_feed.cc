#include "train/device_feed.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "grad/torch_types.h"
#include "train/device.h"

namespace lockstep {
namespace {

// Pinned where that is a GPU's: copies from there are the device's work alone.
torch::Tensor pinned(const torch::Tensor& tensor, torch::Device device) {
  return tensor.defined() && device.is_cuda() && tensor.device().is_cpu() ? tensor.pin_memory() : tensor;
}

template <class Use>
void each_tensor(const Lane& lane, const Use& use) {
  use(lane.data);
  use(lane.target);
  use(lane.weights);
  for (const auto& [name, tensor] : lane.more) use(tensor);
}

Device ours(torch::Device device) {
  return {device.is_cuda() ? Device::Kind::cuda : Device::Kind::custom, device.index()};
}

}  // namespace

DeviceFeed::DeviceFeed(torch::Device device, bool channels_last)
    : device_(device), channels_last_(channels_last) {}

void DeviceFeed::place(Lane& lane) {
  if (device_.is_cpu()) {
    if (channels_last_) static_cast<Batch&>(lane) = moved(lane, device_, true);
    return;
  }
  const c10::DeviceGuard there(device_);  // pinned memory is the current GPU's, too
  DeviceRuntime& runtime = runtime_of(ours(device_));
  thread_local const bool own_stream = (runtime.use_own_stream(device_.index()), true);
  (void)own_stream;
  Batch batch{.data = pinned(lane.data, device_), .target = pinned(lane.target, device_)};
  for (const auto& [name, tensor] : lane.more) batch.more.emplace(name, pinned(tensor, device_));
  static_cast<Batch&>(lane) = moved(batch, device_, channels_last_);
  if (lane.weights.defined()) lane.weights = pinned(lane.weights, device_).to(device_, /*non_blocking=*/true);
  const DeviceEvent copied = runtime.record(runtime.current_stream(device_.index()));
  const std::lock_guard lock(mutex_);
  under_way_[lane.data.data_ptr()] = copied;
}

void DeviceFeed::arrive(const Lane& lane) {
  if (device_.is_cpu()) return;
  DeviceEvent copied;
  {
    const std::lock_guard lock(mutex_);
    if (auto node = under_way_.extract(lane.data.data_ptr())) copied = std::move(node.mapped());
  }
  DeviceRuntime& runtime = runtime_of(ours(device_));
  if (copied) runtime.wait(runtime.current_stream(device_.index()), copied);
  if (!device_.is_cuda()) return;
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  each_tensor(lane, [&](const torch::Tensor& tensor) {
    if (tensor.defined()) tensor.record_stream(stream);
  });
}

}  // namespace lockstep
