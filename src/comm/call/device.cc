#include "lockstep/comm/device.h"

#include <array>
#include <cstdlib>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::array<const char*, kDeviceKinds> kKindNames = {"cpu", "cuda", "custom"};

class HostRuntime final : public DeviceRuntime {
 public:
  std::shared_ptr<void> allocate(std::size_t bytes, int) override {
    constexpr std::size_t kAlignment = 4096;  // for any SIMD
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* const data = rounded < bytes  // more than there are numbers for
                           ? nullptr
                           : std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded);
    if (data == nullptr) throw SystemError("no memory for " + std::to_string(bytes) + " bytes");
    std::memset(data, 0, rounded);
    return {data, std::free};
  }
  DeviceStream current_stream(int) override { return {}; }
  void use_own_stream(int) override {}
  void copy(void* to, const void* from, std::size_t bytes, const DeviceStream&) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void fill(void* to, std::byte value, std::size_t bytes, const DeviceStream&) override {
    if (bytes > 0) std::memset(to, static_cast<int>(value), bytes);
  }
  DeviceEvent record(const DeviceStream&) override { return {}; }
  void wait(const DeviceStream&, const DeviceEvent&) override {}
  bool passed(const DeviceEvent&) override { return true; }
  std::optional<std::int64_t> time_of(const DeviceEvent&) override { return std::nullopt; }
  bool wait_on_host(const DeviceEvent&, std::chrono::milliseconds) override { return true; }
};

// In a function, so that it is there before the first static object that adds a runtime.
std::array<DeviceRuntime*, kDeviceKinds>& runtimes() {
  static HostRuntime host;
  static std::array<DeviceRuntime*, kDeviceKinds> all = {&host};
  return all;
}

}  // namespace

const char* to_string(Device::Kind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

std::string to_string(Device device) {
  return device.kind == Device::Kind::cpu ? "cpu"
                                          : to_string(device.kind) + (":" + std::to_string(device.index));
}

void add_device_runtime(Device::Kind kind, DeviceRuntime& runtime) {
  DeviceRuntime*& place = runtimes()[static_cast<std::size_t>(kind)];
  if (place != nullptr)
    throw UsageError(std::string("there is a runtime for ") + to_string(kind) + " already");
  place = &runtime;
}

DeviceRuntime& runtime_of(Device device) {
  if (DeviceRuntime* const runtime = runtimes()[static_cast<std::size_t>(device.kind)]) return *runtime;
  std::string there;
  for (std::size_t kind = 0; kind < kDeviceKinds; ++kind)
    if (runtimes()[kind] != nullptr) there += (there.empty() ? "" : ", ") + std::string(kKindNames[kind]);
  throw UsageError("this program was built without a runtime for " + to_string(device) +
                   "; it has: " + there);
}

}  // namespace lockstep
