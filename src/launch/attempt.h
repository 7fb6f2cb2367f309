// One start of the whole group, to its end.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launch/agent_link.h"
#include "launch/events.h"
#include "launch/guardian.h"
#include "launch/orphans.h"
#include "launch/signal_watch.h"
#include "launch/worker_environment.h"
#include "launch/worker_output.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/fd.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {

// What an attempt needs beyond the user's options.
struct AttemptPlan {
  std::string program_file = {};
  Start start = {};
  std::string log_folder = {};              // exists; empty when nothing goes to files
  std::vector<std::vector<int>> cpus = {};  // to run on, by local rank; empty: as the launcher
};

// Owns the worker processes: however it ends, by an exception too, none is left when it is destroyed.
//
// One thread waits in one epoll set for workers that end (pidfds), their output, signals to the launcher,
// the readers of the launcher's output and the agents of other machines. A worker that has ended stays a
// zombie until its process group was killed, so that its number can't belong to somebody else when that
// happens.
class Attempt {
 public:
  // `link`: to the agents of other machines; null when there are none.
  Attempt(const LaunchOptions& options, const AttemptPlan& plan, SignalWatch& signals, Sinks& sinks,
          AgentLink* link);
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // Starts the workers and waits until all have ended, on all machines, and their output is written.
  // Fills nodes, workers, first_failed, first_failed_node, last_lines, interrupted_by and seconds.
  LaunchReport run();
  // What the machines agreed on at the end; none without a link, or when this one was told twice to stop.
  const std::optional<Verdict>& verdict() const { return verdict_; }

 private:
  struct Worker {
    pid_t pid = -1;
    UniqueFd pidfd = {};
    bool running = false;
  };

  // Workers are numbered here by their local rank; reports and messages have the rank.
  int rank_of(int local_rank) const { return plan_.start.job.own().first_rank + local_rank; }
  void start(int local_rank);
  void handle(About about, std::size_t index);
  void handle_deadlines();
  void handle_signal(int signal);
  void note_end(int local_rank);
  void interrupt(int signal);
  void hear_others();
  void obey(const AgentLink::Order& order);
  void report_to_others();  // once nothing is left to do here; then takes their verdict
  void stop(int signal, std::chrono::milliseconds grace);  // begins to end the group
  void ask_then_stop(int signal);  // the same, but first asks the workers where they stand
  void signal_all(int signal);
  void kill_and_reap();
  bool ended_here() const;
  bool done() const;
  int timeout_ms() const;
  LocalEnd local_end();
  void forget_asking();
  void note_blames();  // what the workers' flight recorders say, once all have ended

  const LaunchOptions& options_;
  const AttemptPlan& plan_;
  SignalWatch& signals_;
  Sinks& sinks_;
  AgentLink* link_;
  Events events_;
  WorkerOutput output_;
  Orphans orphans_;
  Guardian guardian_;
  std::vector<Worker> workers_;
  std::vector<WorkerEnd> ends_;  // in the order seen
  Clock::time_point begin_ = Clock::now();
  int running_ = 0;
  int interrupted_by_ = 0;
  int killed_ = 0;                 // workers, after they were told to stop
  bool killed_by_signal_ = false;  // not because the grace period was over
  bool stopping_ = false;          // the others were told to end
  bool told_to_stop_ = false;      // by a signal, here or on another machine
  bool abandoned_ = false;         // a signal while only output was left to write
  bool output_dropped_ = false;    // nobody reads it, and the time for that is over
  bool reaped_ = false;
  bool reported_ = false;                       // to the other machines
  std::optional<Clock::time_point> stop_at_;    // after a failure: end of the time to settle
  std::optional<Clock::time_point> kill_at_;    // end of the grace period
  bool asked_ = false;                          // where they stand
  bool made_folder_ = false;                    // for that
  std::optional<Clock::time_point> signal_at_;  // when those that were asked are told to stop
  int signal_ = 0;                              // by this
  Clock::time_point interrupted_at_{};
  std::chrono::milliseconds grace_{};  // that the group has, once it is being ended
  Clock::time_point grace_end_{};
  std::optional<Clock::time_point> drop_at_;     // when output that nobody reads is dropped
  std::optional<Clock::time_point> drain_by_;    // after the last worker: end of waiting for output
  std::optional<Clock::time_point> mention_at_;  // the first worker that ended well, while others run
  Clock::time_point hear_at_ = Clock::now();     // when the others are listened to at the latest
  std::optional<Verdict> verdict_;
};

}  // namespace lockstep::launcher
