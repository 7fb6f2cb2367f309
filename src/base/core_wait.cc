#include "base/core_wait.h"

#include <fstream>

namespace lockstep {

double seconds_without_core(const std::filesystem::path& proc) {
  double waited_ns = 0;
  std::error_code error;  // threads come and go meanwhile
  for (std::filesystem::directory_iterator task(proc / "self/task", error), end; !error && task != end;
       task.increment(error)) {
    double ran_ns = 0, own_ns = 0;
    if (std::ifstream(task->path() / "schedstat") >> ran_ns >> own_ns) waited_ns += own_ns;
  }
  return waited_ns * 1e-9;
}

}  // namespace lockstep
