// GPUs as devices (lockstep/comm/device.h): memory by cudaMalloc, events from a pool. Linking lockstep_cuda
// adds it. Nothing here touches a GPU before the first call that needs one.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/cuda/event_clock.h"
#include "lockstep/comm/device.h"

namespace lockstep::cuda {

class CudaRuntime final : public DeviceRuntime {
 public:
  static CudaRuntime& get();  // never destroyed

  std::shared_ptr<void> allocate(std::size_t bytes, int index) override;
  DeviceStream current_stream(int index) override;
  void use_own_stream(int index) override;
  void copy(void* to, const void* from, std::size_t bytes, const DeviceStream& stream) override;
  void fill(void* to, std::byte value, std::size_t bytes, const DeviceStream& stream) override;
  DeviceEvent record(const DeviceStream& stream) override;
  void wait(const DeviceStream& stream, const DeviceEvent& event) override;
  bool passed(const DeviceEvent& event) override;
  std::optional<std::int64_t> time_of(const DeviceEvent& event) override;
  bool wait_on_host(const DeviceEvent& event, std::chrono::milliseconds timeout) override;

  // Memory of so many bytes, not filled. A SystemError where there is none says what takes the rest.
  // `what`: "comm memory", for that message.
  void* take(std::size_t bytes, int index, const char* what);
  // Gives back what take() gave: once everything is over that this process's streams have been given until
  // now. The host waits for none of it.
  void give_back(void* data, std::size_t bytes, int index) noexcept;

  // Of what take() gave and was not freed yet.
  std::size_t taken_bytes(int index);

  // Points in all streams that this process puts work on (seen_streams) and that are not idle.
  std::vector<DeviceEvent> record_all(int index);

  // Who put something on a stream that may never end, or end without a result (a peer died): while the host
  // waits for an event of that stream, `look(false)` is called now and then, and may throw why it is in vain;
  // where the event has passed `look(true)`, which may throw why that means nothing. The last one counts, as
  // long as it lives. A stream that waits for an event of that one waits as long: `look(false)` is called for
  // its events, too.
  void watch(const DeviceStream& stream, std::weak_ptr<const std::function<void(bool)>> look);

 private:
  struct Event;
  struct Leaving {  // memory that streams may still work on
    void* data;
    std::size_t bytes;
    int index;
    std::vector<DeviceEvent> until;
  };
  CudaRuntime();
  cudaEvent_t new_event(int index);
  void look(const DeviceEvent& event, bool has_passed);
  void reap() noexcept;  // frees what is over
  void free(void* data, std::size_t bytes, int index) noexcept;
  std::string who_has_it(int index);

  std::mutex mutex_;                                // of what follows
  std::map<int, std::vector<cudaEvent_t>> events_;  // spare ones, by GPU
  std::vector<Leaving> leaving_;
  std::map<int, std::size_t> taken_;  // bytes, by GPU
  using Looks = std::map<cudaStream_t, std::weak_ptr<const std::function<void(bool)>>>;
  Looks looks_;
  Looks looks_behind_;  // of the stream that this one came behind last
  std::atomic<bool> any_leaving_ = false;
  EventClock clock_;
};

}  // namespace lockstep::cuda
