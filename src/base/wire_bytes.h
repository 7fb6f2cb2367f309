// How many bytes this process has written to the connections between ranks, headers included: a meter that
// only grows. What MPI and Gloo send by themselves is not counted.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep {

inline std::atomic<std::uint64_t>& wire_bytes() {
  static std::atomic<std::uint64_t> bytes{0};
  return bytes;
}

}  // namespace lockstep
