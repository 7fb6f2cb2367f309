#include "launch/signal_watch.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr int kAnswered[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD};

}  // namespace

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

SignalWatch::SignalWatch() {
  // Who started this process may have it ignored; then workers would vanish without a word of how they ended.
  ::sigaction(SIGCHLD, nullptr, &original_child_);
  if (original_child_.sa_handler == SIG_IGN || (original_child_.sa_flags & SA_NOCLDWAIT) != 0) {
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &standard, nullptr);
  }
  sigset_t watched;
  ::sigemptyset(&watched);
  for (const int signal : kAnswered)
    if (!is_ignored(signal)) ::sigaddset(&watched, signal);
  fd_.reset(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) throw SystemError("signalfd", errno);
  ::sigaddset(&watched, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &watched, &original_);
}

SignalWatch::~SignalWatch() {
  while (next()) {
  }
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  const timespec now{};
  if (::sigismember(&original_, SIGPIPE) == 0) ::sigtimedwait(&pipe, nullptr, &now);
  ::sigaction(SIGCHLD, &original_child_, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &original_, nullptr);
}

std::optional<int> SignalWatch::next() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

bool ends_job(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

}  // namespace lockstep::launcher
