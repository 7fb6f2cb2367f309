// How long this process' threads have waited for a core.
#pragma once

#include <filesystem>

namespace lockstep {

// Seconds in which threads that are there now were ready to run and did not, so far, all of them together: on
// a machine with enough cores nearly none. 0 where the kernel does not say. `proc`: where it says so, for
// tests.
double seconds_without_core(const std::filesystem::path& proc = "/proc");

}  // namespace lockstep
