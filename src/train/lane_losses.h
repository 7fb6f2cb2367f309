// The losses of a step's lanes, for the host. On a device each is fetched as soon as its forward is through,
// beside the backward that follows: by the time that the host has given the device all of the step, and asks,
// most have come, and the device still has work to do.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <vector>

#include "lockstep/comm/device.h"

namespace lockstep {

class LaneLosses {
 public:
  void begin_step() { count_ = 0; }
  // Between a lane's forward and its backward.
  void add(const torch::Tensor& loss);
  // All of the step's, in their order. Waits for those that have not come.
  std::vector<double> take();

 private:
  struct Slot {
    torch::Tensor host;  // pinned; written to by the device until the event has passed
    DeviceEvent fetched;
  };
  std::vector<Slot> slots_;
  std::size_t count_ = 0;
};

}  // namespace lockstep
