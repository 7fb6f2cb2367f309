// Numbers in memory that streams wait for and write: the driver's stream memory operations. Unlike an event,
// a number can be waited for by whoever knows its address, and be written by the host: who waits for what a
// dead process was to write can be let go. A stream that waits takes no multiprocessor, and the GPU may go to
// another process.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/comm/device.h"

namespace lockstep::cuda {

// Until the number at `address` (as GPUs see it) is `least` or more.
struct NumberWait {
  std::uintptr_t address = 0;
  std::uint64_t least = 0;
};

// Why the driver, or a GPU that this process sees, has no such operations; empty: all have.
std::string no_memory_ops();

// Behind what the stream holds, which everybody sees who has seen the number.
void write_number(const DeviceStream& stream, std::uintptr_t address, std::uint64_t value);
// One operation, whatever their number.
void wait_for_numbers(const DeviceStream& stream, std::span<const NumberWait> waits);

}  // namespace lockstep::cuda
