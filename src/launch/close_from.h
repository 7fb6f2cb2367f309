// Closing what a new process has inherited.
#pragma once

namespace lockstep::launcher {

// Closes every descriptor from `first` up, whatever the kernel offers for it: close_range (Linux 5.9), else
// one by one as listed in /proc/self/fd, else up to the limit. Async-signal-safe.
void close_from(int first);

}  // namespace lockstep::launcher
