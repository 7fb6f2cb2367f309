#include "launch/notices.h"

#include <fmt/format.h>
#include <string.h>

namespace lockstep::launcher {

std::string stop_notice(int signal, int running, std::chrono::milliseconds grace) {
  const char* const name = ::sigabbrev_np(signal);
  return fmt::format(
      "SIG{}: the worker{} told to stop and may take {:g} s (--grace); once more, after {} s, "
      "kills {} at once",
      name != nullptr ? name : std::to_string(signal), running == 1 ? " is" : "s are",
      std::chrono::duration<double>(grace).count(), kOneStop.count(), running == 1 ? "it" : "them");
}

std::string early_end_notice(const std::vector<WorkerEnd>& ends, int running, bool several_machines) {
  const char* const here = several_machines ? " on this machine" : "";
  if (running == 0)
    return several_machines
               ? "all ranks on this machine have ended (status 0); waiting for those of the others"
               : "";
  return fmt::format("rank {} ended (status 0) {} s ago{} while {} other rank{}{} still run{}",
                     ends.front().rank, kEarlyEnd.count(),
                     ends.size() == 1 ? "" : fmt::format(", and {} more since,", ends.size() - 1), running,
                     running == 1 ? "" : "s", here, running == 1 ? "s" : "");
}

}  // namespace lockstep::launcher
