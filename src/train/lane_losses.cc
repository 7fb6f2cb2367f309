#include "train/lane_losses.h"

#include <chrono>

#include "grad/torch_types.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr auto kLongest = std::chrono::hours(1);  // that a device may take for a step

}  // namespace

void LaneLosses::add(const torch::Tensor& loss) {
  const torch::NoGradGuard no_grad;
  if (count_ == slots_.size()) slots_.emplace_back();
  Slot& slot = slots_[count_++];
  if (loss.device().is_cpu()) {
    slot.host = loss.detach().to(torch::kFloat64).clone();
    slot.fetched = {};
    return;
  }
  if (!slot.host.defined() || slot.host.scalar_type() != loss.scalar_type() ||
      slot.host.sizes() != loss.sizes())
    slot.host =
        torch::empty(loss.sizes(),
                     torch::TensorOptions().dtype(loss.scalar_type()).pinned_memory(loss.device().is_cuda()));
  slot.host.copy_(loss.detach(), /*non_blocking=*/true);
  const Device device = device_of(loss, "the loss");
  DeviceRuntime& runtime = runtime_of(device);
  slot.fetched = runtime.record(runtime.current_stream(device.index));
}

std::vector<double> LaneLosses::take() {
  std::vector<double> losses;
  for (std::size_t i = 0; i < count_; ++i) {
    Slot& slot = slots_[i];
    if (slot.fetched && !runtime_of(slot.fetched.device).wait_on_host(slot.fetched, kLongest))
      throw SystemError("a loss has not come from " + to_string(slot.fetched.device) + " within an hour");
    slot.fetched = {};
    losses.push_back(slot.host.item<double>());
  }
  return losses;
}

}  // namespace lockstep
