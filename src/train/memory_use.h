// Memory of this process.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

// From /proc/self/status, in bytes: "VmRSS" now, "VmHWM" the most so far. 0: not known.
std::int64_t memory_bytes(const std::string& what);

}  // namespace lockstep
