// What is asked of a device besides the processor: memory, streams and events. A library that drives one adds
// its runtime when it is linked, as engines are added; groups, Work, buckets and optimizers then work where a
// tensor's memory is.
//
// A stream does what it is given in order, beside the host and beside other streams. An event is a point in a
// stream: what was given to it before. Nothing here makes the host wait for a stream but wait_on_host.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/buffer.h"

namespace lockstep {

struct DeviceStream {
  Device device = {};
  void* handle = nullptr;  // the runtime's own; CUDA's is a cudaStream_t
};

// Empty: of the host, and passed already.
struct DeviceEvent {
  Device device = {};
  std::shared_ptr<void> handle = {};
  explicit operator bool() const { return handle != nullptr; }
};

// One kind of device, all of its kind by their index. Called from any thread.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  // Zero-filled, in the order of the current stream. Given back at any time: what streams were given before
  // that may still work on it.
  virtual std::shared_ptr<void> allocate(std::size_t bytes, int index) = 0;

  // Of this thread: where the program, and libtorch for it, puts its work.
  virtual DeviceStream current_stream(int index) = 0;
  // From now on this thread's current stream is one that no other thread uses. For a group's own thread:
  // collectives, and what follows on them, then run beside the program's stream.
  virtual void use_own_stream(int index) = 0;

  // From host or device to host or device.
  virtual void copy(void* to, const void* from, std::size_t bytes, const DeviceStream& stream) = 0;
  virtual void fill(void* to, std::byte value, std::size_t bytes, const DeviceStream& stream) = 0;

  virtual DeviceEvent record(const DeviceStream& stream) = 0;
  // What the stream is given from now on comes after the event.
  virtual void wait(const DeviceStream& stream, const DeviceEvent& event) = 0;
  virtual bool passed(const DeviceEvent& event) = 0;
  // When it passed, in nanoseconds of the steady clock (now_ns()); none: it has not, or the device does not
  // say.
  virtual std::optional<std::int64_t> time_of(const DeviceEvent& event) = 0;
  // False: it has not passed within `timeout`. Throws what the device failed with.
  virtual bool wait_on_host(const DeviceEvent& event, std::chrono::milliseconds timeout) = 0;
};

const char* to_string(Device::Kind kind);  // "cpu", "cuda", "custom"
std::string to_string(Device device);      // "cpu", "cuda:1"

// Called once a kind, before main or from it; UsageError where there is one. `runtime` outlives every group.
// The processor's is there: its streams do all at once, and its events are empty.
void add_device_runtime(Device::Kind kind, DeviceRuntime& runtime);
// Throws UsageError, which lists those that there are, where this program has none for it.
DeviceRuntime& runtime_of(Device device);

}  // namespace lockstep
