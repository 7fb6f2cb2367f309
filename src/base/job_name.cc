#include "base/job_name.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "base/environment.h"
#include "lockstep/base/small_file.h"

namespace lockstep {
namespace {

constexpr const char* kRunId = "TORCHELASTIC_RUN_ID";

std::string content(const std::string& file) { return read_small_file(file, 16 << 20).value_or(""); }

bool has_run_id(long pid) {
  const std::string environment = content(fmt::format("/proc/{}/environ", pid));
  return environment.starts_with(std::string(kRunId) + "=") ||
         environment.find('\0' + std::string(kRunId) + "=") != std::string::npos;
}

struct Process {
  long parent = 0;
  std::string started;  // clock ticks since the machine started
};

Process look_at(long pid) {
  // "123 (a name) S 122 …": the name may hold anything, so count from its end. Field 22 is the start.
  const std::string text = content(fmt::format("/proc/{}/stat", pid));
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  Process process;
  std::string field;
  for (int number = 3; fields >> field && number <= 22; ++number) {
    if (number == 4) process.parent = std::atol(field.c_str());
    if (number == 22) process.started = field;
  }
  return process;
}

}  // namespace

std::string job_name() {
  if (const auto job = read_variable("LOCKSTEP_JOB")) return *job;
  const auto run_id = read_variable(kRunId);
  if (!run_id) return "";
  // torchrun's own name for a run is "none" unless one is given, and a given one may be given again. The
  // agent that starts the workers anew is one process: the nearest above us that has no run id in its own
  // environment.
  long agent = ::getppid();
  while (agent > 1 && has_run_id(agent)) agent = look_at(agent).parent;
  return fmt::format("{} agent {} started {} boot {}", *run_id, agent, look_at(agent).started,
                     content("/proc/sys/kernel/random/boot_id").substr(0, 36));
}

bool is_job_name(const std::string& text) {
  const bool of_lockstep_run =
      text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
  std::size_t at = 0;
  for (const char* const word : {" agent ", " started ", " boot "})
    if (at != std::string::npos) at = text.find(word, at);
  return of_lockstep_run || at != std::string::npos;
}

}  // namespace lockstep
