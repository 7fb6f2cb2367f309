// A device made of host memory and threads, to test what lockstep/comm/device.h promises, and an engine for
// it.
//
// The memory that programs get can't be touched: they would crash. The streams, threads with a queue each and
// slow on purpose, reach it through a second mapping. Whatever is given to a stream says what it reads and
// writes, and the device looks then and there whether it comes after all that touched these bytes before: by
// the order of its stream, by an event, or because the host waited. What does not is a hazard, whether it
// went wrong this time or not.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/device.h"
#include "lockstep/comm/group.h"

namespace lockstep::testing {

struct Access {
  const void* data = nullptr;
  std::size_t bytes = 0;
  bool write = false;
};

class TestDevice final : public DeviceRuntime {
 public:
  static TestDevice& get();  // of all devices of the kind `custom`

  std::shared_ptr<void> allocate(std::size_t bytes, int index) override;
  DeviceStream current_stream(int index) override;
  void use_own_stream(int index) override;
  void copy(void* to, const void* from, std::size_t bytes, const DeviceStream& stream) override;
  void fill(void* to, std::byte value, std::size_t bytes, const DeviceStream& stream) override;
  DeviceEvent record(const DeviceStream& stream) override;
  void wait(const DeviceStream& stream, const DeviceEvent& event) override;
  bool passed(const DeviceEvent& event) override;
  std::optional<std::int64_t> time_of(const DeviceEvent&) override { return std::nullopt; }
  bool wait_on_host(const DeviceEvent& event, std::chrono::milliseconds timeout) override;

  // A kernel: `body` runs on the stream's thread.
  void give(const DeviceStream& stream, const std::vector<Access>& touches, std::function<void()> body);
  // Where the streams reach it; of host memory: itself.
  template <class T>
  T* reached(T* data) const {
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(data) + shift_of(data));
  }
  bool owns(const void* data) const { return shift_of(data) != 0; }

  // Not as DeviceRuntime: nobody counts it.
  void wait_uncounted(const DeviceStream& stream);

  std::int64_t host_waits() const { return host_waits_; }  // so far
  std::vector<std::string> take_hazards();

 private:
  struct StreamState;
  struct EventState;
  struct Block;
  using Clock = std::vector<std::uint64_t>;  // by stream: how much of it is over

  TestDevice();
  void map_more(std::size_t bytes);  // under the lock
  std::uintptr_t shift_of(const void* data) const;
  StreamState& new_stream(int index);
  void look(StreamState& stream, const Access& access);  // under the lock
  bool await(const DeviceEvent& event, std::chrono::milliseconds timeout);

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<StreamState>> streams_;
  std::map<int, StreamState*> default_streams_;  // by index
  std::map<std::uintptr_t, Block> blocks_;       // by where they end; they stay
  std::uintptr_t next_ = 0;                      // for the next block, in the last mapping
  std::uintptr_t end_ = 0;                       // of that
  std::uintptr_t shift_ = 0;                     // to the mapping of the streams
  std::map<int, Clock> host_;                    // by index: what the rank that has it has waited for
  std::vector<std::string> hazards_;
  std::exception_ptr error_;  // the first of a kernel
  std::atomic<std::int64_t> host_waits_ = 0;
};

// The device of this rank, whose index is its rank: threads are ranks.
inline Device test_device(const Group& group) { return {Device::Kind::custom, group.rank()}; }

// A group of threads whose engine, "test-device", works on host memory and on the test device. `one`: what
// each rank knows by an index of its own (with streams, and threads of libtorch's, of its own) is the same
// device, where they have memory in common.
enum class TestCards { one_each, one };
std::vector<Group> test_device_groups(int size, TestCards cards = TestCards::one_each);

}  // namespace lockstep::testing
