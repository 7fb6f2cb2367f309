// One logger for the whole library, on standard error. Level from LOCKSTEP_LOG
// (trace, debug, info, warn, error, off; default warn).
#pragma once

#include <spdlog/spdlog.h>

namespace lockstep {

// The library's logger; made on first use, prefixed with the rank once set_log_rank was called.
spdlog::logger& log();
void set_log_rank(int rank);

}  // namespace lockstep
