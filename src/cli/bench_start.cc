#include "cli/bench_start.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "launch/worker_environment.h"
#include "lockstep/base/error.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::cli {
namespace {

std::string find_mpirun() {
  const char* path = std::getenv("PATH");
  const std::string folders = path == nullptr ? "" : path;
  for (std::size_t begin = 0; begin < folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string program = folders.substr(begin, end - begin) + "/mpirun";
    if (::access(program.c_str(), X_OK) == 0) return program;
    begin = end + 1;
  }
  return "";
}

// A name that nobody has; the folder is made by whoever has something to keep.
std::string new_dump_dir() {
  const char* const given = std::getenv("TMPDIR");
  return std::string(given != nullptr && *given != '\0' ? given : "/tmp") + "/lockstep-" +
         launcher::random_name().substr(0, 12) + "-dumps";
}

[[noreturn]] void exec_mpirun(const StartOptions& options) {
  std::vector<std::string> words = {find_mpirun(), "-q", "--oversubscribe", "--bind-to", "none"};
  if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
  words.insert(words.end(), {"-n", std::to_string(options.workers)});
  words.insert(words.end(), options.program.begin(), options.program.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // The workers are who mpirun says they are, not who an outer launcher said that this process is.
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCKSTEP_JOB",
        "LOCKSTEP_RESTART", "LOCKSTEP_AGENT", "LOCKSTEP_SECRET"})
    ::unsetenv(name);
  ::execv(argv[0], argv.data());
  std::perror("mpirun");
  std::_Exit(1);
}

[[noreturn]] void run_launcher(const StartOptions& options) {
  int status = 1;
  try {
    const LaunchReport report = launch({.program = options.program,
                                        .workers = options.workers,
                                        .console = Console::errors,
                                        .pinning = options.pinning,
                                        .grace = options.grace});
    if (report.first_failed) std::fputs(describe(report).c_str(), stderr);
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

int conclude(const std::string& command, const std::vector<WorkerError>& errors, const Starter& starter,
             int wait_status) {
  for (const WorkerError& error : errors) {
    if (error.kind != "usage") continue;
    std::error_code ignored;
    if (!starter.dump_dir.empty()) std::filesystem::remove_all(starter.dump_dir, ignored);
    throw UsageError(error.text);
  }
  for (const WorkerError& error : errors)
    std::fprintf(stderr, "lockstep %s: %s\n", command.c_str(), error.text.c_str());
  std::error_code none;
  if (!errors.empty() && !starter.dump_dir.empty() && std::filesystem::exists(starter.dump_dir, none))
    std::fprintf(stderr, "lockstep %s: flight recorders are in %s\n", command.c_str(),
                 starter.dump_dir.c_str());
  if (!errors.empty()) return 1;
  std::array<char, 4096> chunk{};
  off_t at = 0;
  for (ssize_t n = 0; (n = ::pread(starter.errors.get(), chunk.data(), chunk.size(), at)) > 0; at += n)
    std::fwrite(chunk.data(), 1, static_cast<std::size_t>(n), stderr);
  if (wait_status == 0) return 0;
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    std::fprintf(stderr, "lockstep %s: the launcher of the workers was killed by signal %d (%s)%s\n",
                 command.c_str(), signal, ::strsignal(signal),
                 signal == SIGKILL ? "; out of memory? `dmesg` would say so" : "");
    return 128 + signal;
  }
  std::fprintf(stderr, "lockstep %s: the workers failed (exit status %d)\n", command.c_str(),
               WEXITSTATUS(wait_status));
  return WEXITSTATUS(wait_status) > 128 ? WEXITSTATUS(wait_status) : 1;
}

bool has_mpirun() { return !find_mpirun().empty(); }

Starter start_workers(const StartOptions& options) {
  if (options.with_mpi && !has_mpirun())
    throw SystemError(
        "the mpi engine needs mpirun, which is not on the path (Debian's package is openmpi-bin)");
  Starter starter;
  starter.errors.reset(::memfd_create("bench-errors", MFD_CLOEXEC));
  if (!starter.errors) throw SystemError("bench: memfd_create", errno);
  if (std::getenv("LOCKSTEP_DUMP_DIR") == nullptr) starter.dump_dir = new_dump_dir();
  // A process of its own: the launcher takes over the signals of the process that it runs in.
  const pid_t parent = ::getpid();
  starter.pid = ::fork();
  if (starter.pid < 0) throw SystemError("bench: fork", errno);
  if (starter.pid != 0) return starter;

  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) std::_Exit(1);  // it was killed before the line above
  if (!starter.dump_dir.empty()) ::setenv("LOCKSTEP_DUMP_DIR", starter.dump_dir.c_str(), 1);
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null >= 0) ::dup2(null, 0);
  ::dup2(starter.errors.get(), 1);
  ::dup2(starter.errors.get(), 2);
  if (options.with_mpi) exec_mpirun(options);
  run_launcher(options);
}

}  // namespace lockstep::cli
