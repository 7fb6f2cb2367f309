// What tests on a GPU share: whether there is one, and moving bytes to it and back.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "comm/cuda/check.h"
#include "lockstep/comm/device.h"

// Without a GPU nothing can be tried: the reason is printed.
#define LOCKSTEP_NEEDS_GPU()                                              \
  if (std::string why_none; lockstep::cuda::device_count(&why_none) == 0) \
  GTEST_SKIP() << "no GPU here: " << why_none

namespace lockstep::testing {

inline constexpr Device kGpu{Device::Kind::cuda, 0};

using Bytes = std::vector<std::byte>;

// On this thread's current stream.
inline void upload(void* to, const void* from, std::size_t bytes) {
  DeviceRuntime& runtime = runtime_of(kGpu);
  runtime.copy(to, from, bytes, runtime.current_stream(0));
}

// Waits until the current stream is done.
inline void sync() {
  DeviceRuntime& runtime = runtime_of(kGpu);
  if (!runtime.wait_on_host(runtime.record(runtime.current_stream(0)), std::chrono::seconds(60)))
    throw SystemError("the current stream has not ended within 60 s");
}

inline Bytes download(const void* from, std::size_t bytes) {
  Bytes host(bytes);
  DeviceRuntime& runtime = runtime_of(kGpu);
  runtime.copy(host.data(), from, bytes, runtime.current_stream(0));
  sync();
  return host;
}

}  // namespace lockstep::testing
