// Starts the workers of one job on this machine, carries their output, and ends them all together.
//
//   const LaunchReport report = launch({.program = {"./train", "--fast"}, .workers = 4});
//   if (!report.ok()) std::cerr << describe(report);
//
// Each worker is told who it is in the environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT and the rest of torchrun's, and ours, LOCKSTEP_JOB, LOCKSTEP_RESTART,
// LOCKSTEP_AGENT, LOCKSTEP_DUMP_DIR, and LOCKSTEP_SECRET, which only the workers of this job have.
//
// Whatever the workers start ends with the job: when the last worker has ended, when one fails, when
// the launcher is told to stop, and when the launcher itself is killed (a small guardian process sees
// to that one). Each worker leads a process group of its own; processes that left it are found by
// LOCKSTEP_AGENT in their environment, and those that cleared it too by becoming the launcher's children when
// their parent dies. The last is only so while the launcher lives: after a SIGKILL of it a process that has
// both left its worker's group and cleared its environment goes on. What a worker has another service start
// (systemd, a container's daemon, at) is not its own and never ended.
//
// On several machines one launcher runs on each: the agent of its node. The agents meet at node 0's, stay
// connected while the job runs, and start and end their workers together: a failure anywhere ends the job
// everywhere, and every agent reports the same failure first. On one machine no port is opened.
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
inline constexpr int kMostNodes = 1024;
inline constexpr int kMostThreads = 1024;  // of a worker

// Where a worker's output goes on the launcher's own standard output and error.
enum class Console {
  prefixed,  // whole lines, each with "[rank N] " in front
  raw,       // as written; on a terminal the worker has the terminal itself
  errors,    // standard error prefixed, standard output nowhere
  none,      // nowhere; the last lines are still kept for the report of a failure
};

// Signals that tell a job to stop are one when they come within this time: systemd, schedulers and timeout(1)
// send them to every process, and each passes its own on.
inline constexpr std::chrono::seconds kOneStop{3};
// What each process goes by: it may hear of the first one later than whoever counts the seconds.
inline constexpr std::chrono::milliseconds kOneStopHeard = kOneStop - std::chrono::milliseconds(500);

enum class Pinning {
  cores,  // each worker on its own cores, when there are at least as many cores as workers
  none,
};

// A job on several machines: what its agents have to know of each other. The job's secret comes from
// `secret_file`, else from LOCKSTEP_SECRET or the file that LOCKSTEP_SECRET_FILE names.
struct Machines {
  int nodes = 1;        // 1 to kMostNodes; all agents must say the same
  int least_nodes = 0;  // fewer that would do; only mentioned so far: the job starts with `nodes`
  std::optional<int> node =
      {};  // this one's number; none: node 0 where the endpoint is ours, else given by node 0
  std::string endpoint = {};  // "host:port": where node 0's agent listens and the others find it
  std::string secret_file = {};
  std::chrono::milliseconds patience = std::chrono::minutes(10);  // until all agents must have come
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
  // OMP_NUM_THREADS of every worker, which decides the order of some sums; 0: the launcher's own, and 1 where
  // it has none. It never follows the number of workers or cores, and on several machines node 0's counts.
  int threads = 0;
  // Who is told to stop has work to save: SIGKILL comes `grace` after the signal. After a failure the others
  // get `settle` to notice by themselves and write their flight recorders, then SIGTERM, then
  // `grace_after_failure` later SIGKILL.
  std::chrono::milliseconds settle{300};
  std::chrono::milliseconds grace{30000};
  std::chrono::milliseconds grace_after_failure{5000};
  std::string log_dir = {};     // per-rank files go to a new folder in it; empty: the temporary folder
  StreamChoice redirects = {};  // streams that go to a file instead of the console, by local rank
  StreamChoice tee = {};        // streams that go to a file and to the console, likewise
  std::string run_id = {};      // TORCHELASTIC_RUN_ID; empty: the job's random name
  std::string role = "default";
  std::string master_addr = {};  // empty: 127.0.0.1; on several machines the endpoint's host. Node 0's counts
  int master_port = 0;           // 0: one that is free just now
  Machines machines = {};
  bool plaintext = false;  // no TLS between agents, nor between workers (LOCKSTEP_TLS=off)
  // Further variables for every worker; they win over inherited ones.
  std::vector<std::pair<std::string, std::string>> environment = {};
  // Called after a failed start of the group that is followed by another.
  std::function<void(const LaunchReport&)> on_restart = {};
  // Called with a line for people: while agents wait for each other who is missing, who was refused; later
  // that a worker has ended well before the others, and what happens now that the job was told to stop.
  std::function<void(const std::string&)> on_notice = {};
};

// How one worker ended.
struct WorkerEnd {
  int rank = 0;
  int node = 0;
  pid_t pid = 0;
  int exit_code = 0;         // when signal is 0
  int signal = 0;            // that killed it, 0 when it exited
  bool core_dumped = false;  // a core file was written
  bool stopped = false;      // it ended after the launcher had begun to stop the group
  double seconds = 0;        // from the start of the group to its end
  // Ranks whose end it gave as the reason of its own (PeerError), as its flight recorder says.
  std::vector<int> blames = {};

  bool failed() const { return signal != 0 || exit_code != 0; }
};

// One machine of the job, and how its agent ended.
struct NodeEnd {
  int node = 0;
  std::string host = {};
  int first_rank = 0;
  int workers = 0;
  std::string lost = {};   // why its agent was lost ("closed the connection"); empty when it was not
  int interrupted_by = 0;  // the signal that told its agent to stop, 0 when none did
};

// How the job ended: of several starts, the last one.
struct LaunchReport {
  std::string job = {};  // LOCKSTEP_JOB
  std::string program = {};
  int node = 0;                               // this agent's
  std::vector<NodeEnd> nodes = {};            // by node
  std::vector<WorkerEnd> workers = {};        // by rank; those of a lost node may be missing
  std::optional<int> first_failed = {};       // the rank whose failure came first
  std::optional<int> first_failed_node = {};  // or, where none did: the node that was lost or interrupted
  std::vector<std::string> last_lines = {};   // that this rank wrote
  int interrupted_by = 0;                     // the signal that told the launcher to stop, 0 when none did
  // Workers of this machine that were told to stop and were killed, because `grace` was over or a second
  // signal came: what they had not saved is lost.
  int killed_workers = 0;
  bool killed_by_signal = false;  // by the second signal
  double grace_s = 0;             // that they had
  std::string output_lost = {};   // why standard output could not be written; empty when it could
  int restarts = 0;
  int max_restarts = 0;
  double seconds = 0;                   // of the last start
  std::string log_dir = {};             // folder of the per-rank files, empty when there are none
  std::string dump_dir = {};            // folder of the flight recorders' dumps, empty when there are none
  std::vector<std::string> dumps = {};  // their file names
  std::vector<std::string> dump_summary = {};  // who waited for whom, as the most telling dump says

  bool ok() const {
    return !first_failed && !first_failed_node && interrupted_by == 0 && output_lost.empty();
  }
  // 0; 1 when a worker or another node failed, or output was lost; 128 + signal when the launcher was told to
  // stop.
  int exit_status() const {
    if (ok()) return 0;
    return interrupted_by != 0 && output_lost.empty() ? 128 + interrupted_by : 1;
  }
};

// Runs the job to its end. While it runs, SIGINT, SIGTERM, SIGHUP and SIGQUIT to this process are passed
// on to the workers and end the job (a second one, kOneStop later or more, kills them at once; output that
// nobody reads is dropped when `grace` is over), SIGUSR1 and SIGUSR2 are passed on, SIGTSTP stops and
// continues the workers too. Call it from a process with no other threads. Throws UsageError for options that
// can't be (no such program, too many workers, another number of nodes than node 0's), SystemError when the
// system refuses something; on several machines TimeoutError naming the nodes that did not come, and
// PeerError when node 0 does not take this agent (another secret).
LaunchReport launch(const LaunchOptions& options);

// The report for people: several lines, the first failure first; empty when all went well.
std::string describe(const LaunchReport& report);

// The report as one JSON object on one line.
std::string to_json(const LaunchReport& report);

// How many cores this process may use.
int available_cores();

}  // namespace lockstep
