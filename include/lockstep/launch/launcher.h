// Starts the workers of one job on this machine, carries their output, and ends them all together.
//
//   const LaunchReport report = launch({.program = {"./train", "--fast"}, .workers = 4});
//   if (!report.ok()) std::cerr << describe(report);
//
// Each worker is told who it is in the environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT and the rest of torchrun's, and ours, LOCKSTEP_JOB, LOCKSTEP_RESTART and
// LOCKSTEP_DUMP_DIR. The launcher itself opens no port.
//
// Whatever the workers start ends with the job: when the last worker has ended, when one fails, when
// the launcher is told to stop, and when the launcher itself is killed (a small guardian process sees
// to that one). Each worker leads a process group of its own; processes that left it are found by
// LOCKSTEP_JOB in their environment.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/launch/streams.h"

namespace lockstep {

inline constexpr int kMostWorkers = 1024;  // that one launcher starts

// Where a worker's output goes on the launcher's own standard output and error.
enum class Console {
  prefixed,  // whole lines, each with "[rank N] " in front
  raw,       // as written; on a terminal the worker has the terminal itself
  errors,    // standard error prefixed, standard output nowhere
  none,      // nowhere; the last lines are still kept for the report of a failure
};

enum class Pinning {
  cores,  // each worker on its own cores, when there are at least as many cores as workers
  none,
};

struct LaunchReport;

struct LaunchOptions {
  std::vector<std::string> program = {};  // the program, looked up as a shell would, and its arguments
  int workers = 1;                        // 1 to kMostWorkers
  int max_restarts = 0;                   // how often the whole group is started again after a failure
  Console console = Console::prefixed;
  std::optional<Console> console_of_rank0 = {};  // when rank 0's differs
  int stdout_fd = 1;                             // where the workers' standard output goes
  Pinning pinning = Pinning::cores;
  // After a failure the others get `settle` to notice by themselves and write their flight recorders,
  // then SIGTERM, then `grace` later SIGKILL.
  std::chrono::milliseconds settle{300};
  std::chrono::milliseconds grace{5000};
  std::string log_dir = {};     // per-rank files go to a new folder in it; empty: the temporary folder
  StreamChoice redirects = {};  // streams that go to a file instead of the console
  StreamChoice tee = {};        // streams that go to a file and to the console
  std::string run_id = {};      // TORCHELASTIC_RUN_ID; empty: the job's random name
  std::string role = "default";
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  // 0: one that is free just now
  // Further variables for every worker; they win over inherited ones.
  std::vector<std::pair<std::string, std::string>> environment = {};
  // Called after a failed start of the group that is followed by another.
  std::function<void(const LaunchReport&)> on_restart = {};
};

// How one worker ended.
struct WorkerEnd {
  int rank = 0;
  pid_t pid = 0;
  int exit_code = 0;         // when signal is 0
  int signal = 0;            // that killed it, 0 when it exited
  bool core_dumped = false;  // a core file was written
  bool stopped = false;      // it ended after the launcher had begun to stop the group
  double seconds = 0;        // from the start of the group to its end

  bool failed() const { return signal != 0 || exit_code != 0; }
};

// How the job ended: of several starts, the last one.
struct LaunchReport {
  std::string job = {};  // LOCKSTEP_JOB
  std::string program = {};
  std::vector<WorkerEnd> workers = {};       // by rank
  std::optional<int> first_failed = {};      // the rank whose failure came first
  std::vector<std::string> last_lines = {};  // that this rank wrote
  int interrupted_by = 0;                    // the signal that told the launcher to stop, 0 when none did
  int restarts = 0;
  int max_restarts = 0;
  double seconds = 0;                   // of the last start
  std::string log_dir = {};             // folder of the per-rank files, empty when there are none
  std::string dump_dir = {};            // folder of the flight recorders' dumps, empty when there are none
  std::vector<std::string> dumps = {};  // their file names
  std::vector<std::string> dump_summary = {};  // who waited for whom, as the most telling dump says

  bool ok() const { return !first_failed && interrupted_by == 0; }
  // 0; 1 when a worker failed; 128 + signal when the launcher was told to stop.
  int exit_status() const { return interrupted_by != 0 ? 128 + interrupted_by : (first_failed ? 1 : 0); }
};

// Runs the job to its end. While it runs, SIGINT, SIGTERM, SIGHUP and SIGQUIT to this process are passed
// on to the workers and end the job (a second one kills them at once), SIGUSR1 and SIGUSR2 are passed on,
// SIGTSTP stops and continues the workers too. Call it from a process with no other threads.
// Throws UsageError for options that can't be (no such program, too many workers), SystemError when the
// system refuses something.
LaunchReport launch(const LaunchOptions& options);

// The report for people: several lines, the first failure first; empty when all went well.
std::string describe(const LaunchReport& report);

// The report as one JSON object on one line.
std::string to_json(const LaunchReport& report);

// How many cores this process may use.
int available_cores();

}  // namespace lockstep
