#include "train/stop_watch.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/launch/launcher.h"

namespace lockstep {
namespace {

constexpr int kStops[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
volatile std::sig_atomic_t told_to_stop = 0;                 // the signal
std::atomic<std::int64_t> told_at_s = 0;                     // on the monotonic clock
std::mutex watches_mutex;                                    // of what follows
int watches = 0;                                             // that live
std::vector<std::pair<int, struct sigaction>> programs_own;  // what the program did at these signals

// For a handler. A signal to every process of a job comes here twice, the second time from the launcher.
void note_stop(int signal) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  if (told_to_stop == 0) {
    told_at_s = now.tv_sec;
    told_to_stop = signal;
  } else if (now.tv_sec - told_at_s > kOneStop.count()) {
    std::signal(signal, SIG_DFL);
    ::raise(signal);  // when the handler has returned
  }
}

}  // namespace

StopWatch::StopWatch() {
  const std::lock_guard lock(watches_mutex);
  if (watches++ > 0) return;
  told_to_stop = 0;
  struct sigaction action {};
  action.sa_handler = note_stop;
  action.sa_flags = SA_RESTART;
  for (const int signal : kStops) {
    struct sigaction own {};
    if (::sigaction(signal, nullptr, &own) != 0 || own.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &action, nullptr);
    programs_own.emplace_back(signal, own);
  }
}

StopWatch::~StopWatch() {
  const std::lock_guard lock(watches_mutex);
  if (--watches > 0) return;
  for (const auto& [signal, own] : programs_own) ::sigaction(signal, &own, nullptr);
  programs_own.clear();
}

int noted_stop() { return told_to_stop; }

}  // namespace lockstep
