// Points in the calling thread's current stream of a device, and what comes behind them; nothing on the
// processor.
#pragma once

#include "lockstep/comm/device.h"

namespace lockstep {

inline DeviceEvent point_of_stream(const Device& device) {
  DeviceRuntime& runtime = runtime_of(device);
  return runtime.record(runtime.current_stream(device.index));
}

// What the stream is given from now on comes behind that point.
inline void come_behind(const Device& device, const DeviceEvent& point) {
  DeviceRuntime& runtime = runtime_of(device);
  if (point) runtime.wait(runtime.current_stream(device.index), point);
}

}  // namespace lockstep
