// Which cores a thread may run on. A cpu_set_t of the C library's ends at 1,024 of them, and on a machine
// that may have more the kernel refuses to fill one in.
#pragma once

#include <bitset>

namespace lockstep {

inline constexpr int kMostCpus = 8192;  // that the kernel numbers

using CoreMask =
    std::bitset<kMostCpus>;  // by the kernel's numbers; plain bytes, which workers send each other

// Those that the calling thread may run on; none where the kernel does not say.
CoreMask allowed_cores();

// Keeps the calling thread on them. False when the kernel refuses: then nothing has changed.
bool allow_cores(const CoreMask& cores);

}  // namespace lockstep
