// Lanes on their way to the device: a loader's threads copy them into pinned memory and from there to the
// device, each on a stream of its own, while the steps before are computed.
//
// A lane's memory is the loader thread's stream's. Who computes with it lets the current stream wait for the
// copy, and tells libtorch's allocator, so that it is not given to the next lane while that stream reads.
#pragma once

#include <torch/types.h>

#include <mutex>
#include <unordered_map>

#include "lockstep/comm/device.h"
#include "lockstep/data/loader.h"

namespace lockstep {

class DeviceFeed {
 public:
  DeviceFeed(torch::Device device, bool channels_last);

  // For LoaderOptions::place, by several threads: the lane is on the device from now on, in the order of this
  // thread's stream.
  void place(Lane& lane);
  // The lane is about to be used by the current stream.
  void arrive(const Lane& lane);

 private:
  torch::Device device_;
  bool channels_last_;
  std::mutex mutex_;
  std::unordered_map<const void*, DeviceEvent> under_way_;  // by where the lane's data lies
};

}  // namespace lockstep
