#include "launch/starter.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/environment.h"
#include "launch/program.h"
#include "launch/worker_environment.h"
#include "lockstep/base/error.h"
#include "lockstep/launch/launcher.h"
#include "net/secret.h"

namespace lockstep {
namespace {

// A name that nobody has; the folder is made by whoever has something to keep.
std::string new_dump_dir() {
  return temporary_folder() + "/lockstep-" + launcher::random_name().substr(0, 12) + "-dumps";
}

// `secret`: under which the workers meet. Without it they would under mpirun's own name for the job, which
// anybody can guess and take first. In the environment, and by its name alone on the command line, which
// other users can read: `-x` is for workers on other machines.
[[noreturn]] void exec_mpirun(const StartOptions& options, const std::string& secret) {
  std::vector<std::string> words = {launcher::in_path("mpirun"), "-q", "--oversubscribe", "--bind-to",
                                    "none"};
  if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
  words.insert(words.end(), {"-x", "LOCKSTEP_SECRET", "-n", std::to_string(options.workers)});
  words.insert(words.end(), options.program.begin(), options.program.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // The workers are who mpirun says they are, not who an outer launcher said that this process is.
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCKSTEP_JOB",
        "LOCKSTEP_RESTART", "LOCKSTEP_AGENT", "LOCKSTEP_SECRET_FILE"})
    ::unsetenv(name);
  ::setenv("LOCKSTEP_SECRET", secret.c_str(), 1);
  ::execv(argv[0], argv.data());
  std::perror("mpirun");
  std::_Exit(1);
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // memory: there is no better place to say so
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> chunk{};
  off_t at = 0;
  for (ssize_t n = 0; (n = ::pread(fd, chunk.data(), chunk.size(), at)) > 0; at += n)
    text.append(chunk.data(), static_cast<std::size_t>(n));
  return text;
}

// Only heard of from the others: the worker that it is about said nothing itself.
bool is_hearsay(const WorkerError& error) { return error.kind == "peer" || error.kind == "timeout"; }

[[noreturn]] void run_launcher(const StartOptions& options, int report_fd) {
  int status = 1;
  try {
    const LaunchReport report = launch({.program = options.program,
                                        .workers = options.workers,
                                        .console = Console::errors,
                                        .pinning = options.pinning,
                                        .grace = options.grace,
                                        .grace_after_failure = options.grace});
    if (report.first_failed || report.killed_workers > 0) write_all(report_fd, describe(report));
    status = report.exit_status();
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  std::fflush(stderr);
  std::_Exit(status);
}

}  // namespace

std::string own_path() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) throw SystemError("finding this program's own file", errno);
  return std::string(path.data(), static_cast<std::size_t>(length));
}

std::string launchers_words(const Starter& starter) { return read_all(starter.report.get()); }

void forget_dumps(const Starter& starter) {
  std::error_code ignored;
  if (!starter.dump_dir.empty()) std::filesystem::remove_all(starter.dump_dir, ignored);
}

int conclude(const std::string& command, const std::vector<WorkerError>& errors, const Starter& starter,
             int wait_status, int interrupted_by) {
  if (interrupted_by != 0) {
    forget_dumps(starter);
    std::fprintf(stderr, "lockstep %s: stopped by %s\n", command.c_str(), ::strsignal(interrupted_by));
    return 128 + interrupted_by;
  }
  for (const WorkerError& error : errors) {
    if (error.kind != "usage") continue;
    forget_dumps(starter);
    throw UsageError(error.text);
  }
  for (const WorkerError& error : errors)
    std::fprintf(stderr, "lockstep %s: %s\n", command.c_str(), error.text.c_str());
  const std::string words = launchers_words(starter);
  if (!errors.empty()) {
    if (std::ranges::all_of(errors, is_hearsay) && !words.empty()) {
      std::fprintf(stderr, "lockstep %s: %s", command.c_str(), words.c_str());
    } else if (std::ranges::all_of(errors, [](const WorkerError& e) { return e.kind == "system"; })) {
      forget_dumps(starter);
    } else if (std::error_code ignored; std::filesystem::exists(starter.dump_dir, ignored)) {
      std::fprintf(stderr, "  flight recorder: %s\n", starter.dump_dir.c_str());
    }
    return 1;
  }
  std::fputs(read_all(starter.errors.get()).c_str(), stderr);
  if (wait_status == 0) return 0;
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    std::fprintf(stderr, "lockstep %s: the launcher of the workers was killed by signal %d (%s)%s\n",
                 command.c_str(), signal, ::strsignal(signal),
                 signal == SIGKILL ? "; out of memory? `dmesg` would say so" : "");
    return 128 + signal;
  }
  if (words.empty())
    std::fprintf(stderr, "lockstep %s: the workers failed (exit status %d)\n", command.c_str(),
                 WEXITSTATUS(wait_status));
  else
    std::fprintf(stderr, "lockstep %s: %s", command.c_str(), words.c_str());
  return WEXITSTATUS(wait_status) > 128 ? WEXITSTATUS(wait_status) : 1;
}

bool has_mpirun() { return !launcher::in_path("mpirun").empty(); }

Starter start_workers(const StartOptions& options) {
  if (options.with_mpi && !has_mpirun())
    throw SystemError(
        "the mpi engine needs mpirun, which is not on the path (Debian's package is openmpi-bin)");
  Starter starter;
  starter.errors.reset(::memfd_create("worker-errors", MFD_CLOEXEC));
  starter.report.reset(::memfd_create("launch-report", MFD_CLOEXEC));
  if (!starter.errors || !starter.report) throw SystemError("memory for what the workers say", errno);
  if (!read_variable("LOCKSTEP_DUMP_DIR")) starter.dump_dir = new_dump_dir();
  const std::string mpi_secret = options.with_mpi ? net::Secret::make().hex() : "";
  // A process of its own: the launcher takes over the signals of the process that it runs in.
  const pid_t parent = ::getpid();
  starter.pid = ::fork();
  if (starter.pid < 0) throw SystemError("starting the launcher of the workers", errno);
  if (starter.pid != 0) return starter;

  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) std::_Exit(1);  // it was killed before the line above
  if (!starter.dump_dir.empty()) ::setenv("LOCKSTEP_DUMP_DIR", starter.dump_dir.c_str(), 1);
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null >= 0) ::dup2(null, 0);
  ::dup2(starter.errors.get(), 1);
  // Who asks for a log wants to see it as it is written.
  if (!read_filled_variable("LOCKSTEP_LOG")) ::dup2(starter.errors.get(), 2);
  if (options.with_mpi) exec_mpirun(options, mpi_secret);
  run_launcher(options, starter.report.get());
}

}  // namespace lockstep
