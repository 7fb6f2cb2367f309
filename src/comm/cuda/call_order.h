// Which calls of the engine ipc wait for which, on the GPU. A call has two streams of the engine's: what it
// says to its peers ("my buffers are ready") is on one, what it does to all buffers on the other. Calls on
// memory of their own, as the buckets of a step are, follow each other there without waiting for any peer;
// what waits for peers to be done is the caller's stream alone. Of streams to work on there are kWorkStreams,
// which calls take in turn: while one waits for its peers' buffers, starts, or says that it is done, which
// takes as long as moving some MiB, another one's kernel has the GPU. A call on memory that one before it
// works on comes behind the end of that one. Where that is one of the last kInARow, there is nothing to be
// gained: it is put on the caller's stream as a whole. Without MPS calls in a row that
// wait on three streams took ten times as long as on one.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "lockstep/comm/device.h"

namespace lockstep::cuda {

// Where the parts of one call go. Both are the call's own stream where it is put there as a whole.
struct CallStreams {
  DeviceStream posts;
  DeviceStream work;
  bool ready = false;  // what the call has to come behind is over already: nothing has to be put on `posts`
};

// Of one engine; one call at a time.
class CallOrder {
 public:
  CallOrder() = default;
  ~CallOrder();  // its streams go to whoever needs some next
  CallOrder(CallOrder&& other) noexcept { swap(other); }
  CallOrder& operator=(CallOrder&& other) noexcept {
    swap(other);
    return *this;
  }

  // Where the engine's streams are.
  std::vector<DeviceEvent> points() const;

  static constexpr std::uint64_t kInARow = 2;
  static constexpr std::size_t kWorkStreams = 3;

  struct Range {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
  };
  static Range range(const void* data, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    return {begin, begin + bytes};
  }

  // Where a call on `memory` goes. Either to the engine's streams: `posts` comes behind `start` and behind
  // the calls that have the same memory; `work` has to wait for what is put on it. Or as a whole to `whole`,
  // which comes behind all calls before.
  CallStreams begin(const DeviceStream& whole, const DeviceEvent& start, std::span<const Range> memory);
  // That call ends there.
  void end(std::span<const Range> memory, const DeviceEvent& at);
  // A call that was put elsewhere, behind all before it, ends there: all that follow come behind it.
  void end_elsewhere(const DeviceEvent& at);

 private:
  struct Streams {
    cudaStream_t posts = nullptr;
    std::array<cudaStream_t, kWorkStreams> work = {};
    bool behind_elsewhere = false;   // `posts` was told to wait for it
    DeviceEvent behind_oldest = {};  // where `posts` has waited for calls that are no longer in open_
  };
  struct Open {
    Range range;
    DeviceEvent end;
    std::uint64_t call;  // its number
  };
  template <class F>
  void for_each_stream(F&& f) const;
  void swap(CallOrder& other) noexcept {
    gpus_.swap(other.gpus_);
    open_.swap(other.open_);
    std::swap(elsewhere_, other.elsewhere_);
    std::swap(calls_, other.calls_);
  }

  std::map<int, Streams> gpus_;  // by index
  std::vector<Open> open_;       // since the last call elsewhere; of calls on the same memory the last
  DeviceEvent elsewhere_;        // where that ends
  std::uint64_t calls_ = 0;      // that have ended here
};

}  // namespace lockstep::cuda
