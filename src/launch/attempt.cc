#include "launch/attempt.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <utility>

#include "launch/dumps.h"
#include "launch/first_failure.h"
#include "launch/notices.h"
#include "launch/open_file.h"
#include "launch/spawn.h"
#include "lockstep/base/error.h"
#include "lockstep/observe/stop_sign.h"

namespace lockstep::launcher {
namespace {

constexpr std::chrono::milliseconds kDrain{500};     // for output that a stranger's process may still hold
constexpr std::chrono::milliseconds kAsking{250};    // for workers to write where they stand
constexpr std::chrono::milliseconds kHearing{1000};  // the others expect signs of life
constexpr std::size_t kMostBlamed = 64;  // workers of a node whose last lines are sent to the others

}  // namespace

Attempt::Attempt(const LaunchOptions& options, const AttemptPlan& plan, SignalWatch& signals, Sinks& sinks,
                 AgentLink* link)
    : options_(options),
      plan_(plan),
      signals_(signals),
      sinks_(sinks),
      link_(link),
      output_(options, plan.start.job.own().first_rank, plan.log_folder, sinks, events_),
      guardian_(plan.start.job.mark()),
      workers_(static_cast<std::size_t>(options.workers)) {
  orphans_.own(guardian_.pid());
  events_.watch(signals_.fd(), EPOLLIN, About::signal);
  if (link_ != nullptr) events_.watch(link_->fd(), EPOLLIN, About::agents);
}

Attempt::~Attempt() {
  if (!reaped_) kill_and_reap();
}

LaunchReport Attempt::run() {
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) start(local_rank);
  while (!done()) {
    events_.wait(timeout_ms(), [this](About about, std::size_t index) { handle(about, index); });
    handle_deadlines();
    output_.flow();
    // Like any program whose output nobody reads any more, or can be written any more.
    if (output_.broken() && interrupted_by_ == 0 && running_ > 0) interrupt(SIGPIPE);
    report_to_others();
  }
  forget_asking();
  LaunchReport report;
  report.interrupted_by = interrupted_by_;
  report.killed_workers = interrupted_by_ != 0 ? killed_ : 0;
  report.killed_by_signal = killed_by_signal_;
  report.grace_s = std::chrono::duration<double>(grace_).count();
  if (const int why = sinks_[0].error(); why != 0 && why != EPIPE) report.output_lost = std::strerror(why);
  report.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  if (verdict_) {
    report.nodes = verdict_->nodes;
    report.workers = verdict_->workers;
    if (interrupted_by_ != 0) return report;
    report.first_failed = verdict_->first_failed;
    report.first_failed_node = verdict_->first_failed_node;
    report.last_lines = verdict_->last_lines;
    return report;
  }
  note_blames();
  report.nodes = plan_.start.job.nodes;
  report.workers = ends_;
  std::sort(report.workers.begin(), report.workers.end(),
            [](const WorkerEnd& a, const WorkerEnd& b) { return a.rank < b.rank; });
  if (interrupted_by_ == 0) report.first_failed = first_failure(ends_);
  if (report.first_failed) report.last_lines = output_.last_lines(*report.first_failed - rank_of(0));
  return report;
}

void Attempt::start(int local_rank) {
  Worker& worker = workers_[static_cast<std::size_t>(local_rank)];
  const UniqueFd out = output_.open(local_rank, Stream::out);
  const UniqueFd err = output_.open(local_rank, Stream::err);
  // Rank 0 reads what is piped into its launcher. A terminal is nobody's: a worker that read from it would
  // be stopped, since its process group is not the terminal's.
  const bool reads = rank_of(local_rank) == 0 && ::isatty(0) == 0;
  const UniqueFd in = reads ? copy_of(0) : open_or_throw("/dev/null", O_RDONLY);
  worker.pid = spawn({.path = plan_.program_file,
                      .arguments = options_.program,
                      .environment = worker_environment(options_, plan_.start, local_rank),
                      .cpus = plan_.cpus[static_cast<std::size_t>(local_rank)],
                      .in = in.get(),
                      .out = out.get(),
                      .err = err.get(),
                      .signals = signals_.original()});
  worker.running = true;
  ++running_;
  guardian_.watch(worker.pid);
  orphans_.own(worker.pid);
  worker.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, worker.pid, 0)));
  if (!worker.pidfd) throw SystemError("pidfd_open (Linux 5.4 or later is needed)", errno);
  events_.watch(worker.pidfd.get(), EPOLLIN, About::worker, static_cast<std::size_t>(local_rank));
}

void Attempt::handle(About about, std::size_t index) {
  switch (about) {
    case About::worker: note_end(static_cast<int>(index)); break;
    case About::stream: output_.read(index); break;
    case About::signal:
      while (const auto signal = signals_.next()) handle_signal(*signal);
      break;
    case About::sink: break;  // flow() writes
    case About::agents: hear_others(); break;
  }
}

void Attempt::note_end(int local_rank) {
  Worker& worker = workers_[static_cast<std::size_t>(local_rank)];
  siginfo_t info{};
  if (!worker.running ||
      ::waitid(P_PID, static_cast<id_t>(worker.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
    return;
  if (info.si_pid == 0) return;
  worker.running = false;
  --running_;
  worker.pidfd.reset();  // also leaves the epoll set
  const bool exited = info.si_code == CLD_EXITED;
  ends_.push_back({.rank = rank_of(local_rank),
                   .node = plan_.start.job.node,
                   .pid = worker.pid,
                   .exit_code = exited ? info.si_status : 0,
                   .signal = exited ? 0 : info.si_status,
                   .core_dumped = info.si_code == CLD_DUMPED,
                   .stopped = stopping_,
                   .seconds = std::chrono::duration<double>(Clock::now() - begin_).count()});
  if (!ends_.back().failed() && ends_.size() == 1) mention_at_ = Clock::now() + kEarlyEnd;
  if (!ends_.back().failed() || stopping_) return;
  if (!stop_at_) stop_at_ = Clock::now() + options_.settle;
  if (link_ != nullptr) link_->failed(ends_.back());
}

void Attempt::handle_signal(int signal) {
  if (signal == SIGTSTP) {
    if (link_ != nullptr) link_->pausing();
    signal_all(SIGSTOP);
    ::kill(::getpid(), SIGSTOP);
    signal_all(SIGCONT);  // here somebody has continued the launcher
    if (link_ != nullptr) link_->going_on();
  } else if (signal == SIGCHLD) {
    orphans_.reap();
  } else if (ends_job(signal)) {
    interrupt(signal);
  } else {
    for (const Worker& worker : workers_)
      if (worker.running) ::kill(worker.pid, signal);
  }
}

void Attempt::interrupt(int signal) {
  // What is sent to every process of a job comes here several times: by itself, and passed on by our parent.
  if (interrupted_by_ != 0 && Clock::now() < interrupted_at_ + kOneStopHeard) return;
  if (running_ == 0 && (link_ == nullptr || interrupted_by_ != 0)) {
    abandoned_ = true;
    if (interrupted_by_ == 0) interrupted_by_ = signal;  // output is lost, and nothing is started again
  } else if (interrupted_by_ != 0) {
    killed_ = running_;
    killed_by_signal_ = true;
    signal_all(SIGKILL);
  } else {
    interrupted_by_ = signal;
    interrupted_at_ = Clock::now();
    told_to_stop_ = true;
    if (link_ != nullptr) link_->interrupted(signal);
    if (!stopping_) ask_then_stop(signal == SIGPIPE ? SIGTERM : signal);
    if (signal != SIGPIPE && running_ > 0 && options_.on_notice)
      options_.on_notice(stop_notice(signal, running_, grace_));
  }
}

void Attempt::obey(const AgentLink::Order& order) {
  told_to_stop_ = told_to_stop_ || order.signal != 0;
  if (stopping_) return;
  if (order.signal != 0)
    ask_then_stop(order.signal == SIGPIPE ? SIGTERM : order.signal);
  else if (!stop_at_)
    stop_at_ = Clock::now() + options_.settle;
}

void Attempt::stop(int signal, std::chrono::milliseconds grace) {
  stopping_ = true;
  stop_at_.reset();
  grace_ = grace;
  grace_end_ = Clock::now() + grace;
  kill_at_ = grace_end_;
  signal_all(signal);
  signal_all(SIGCONT);  // a stopped process can't answer
}

// Most programs end at once when they are told to, and can't say any more for whom they had waited.
void Attempt::ask_then_stop(int signal) {
  if (plan_.start.dump_dir.empty()) return stop(signal, options_.grace);  // the user wants no dumps
  std::error_code error;
  made_folder_ = std::filesystem::create_directories(plan_.start.dump_dir, error);
  const UniqueFd sign(::open(stop_sign(plan_.start.dump_dir, name_for_workers(plan_.start)).c_str(),
                             O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!sign) return stop(signal, options_.grace);
  asked_ = true;
  stopping_ = true;
  stop_at_.reset();
  grace_ = options_.grace;
  signal_at_ = Clock::now() + kAsking;
  signal_ = signal;
}

// What they wrote stays where one did not end by itself.
void Attempt::forget_asking() {
  if (!asked_) return;
  const bool killed = std::any_of(ends_.begin(), ends_.end(),
                                  [](const WorkerEnd& end) { return end.stopped && end.signal != 0; });
  clear_stop(plan_.start.dump_dir, name_for_workers(plan_.start), killed ? Dumps::stay : Dumps::too);
  std::error_code error;
  if (made_folder_) std::filesystem::remove(plan_.start.dump_dir, error);  // if nothing is in it
}

void Attempt::signal_all(int signal) {
  for (const Worker& worker : workers_)
    if (worker.pid > 0) ::kill(-worker.pid, signal);
}

void Attempt::hear_others() {
  if (const auto order = link_->poll()) obey(*order);
}

void Attempt::handle_deadlines() {
  const auto now = Clock::now();
  if (link_ != nullptr && now >= hear_at_) {
    hear_at_ = now + kHearing;
    hear_others();
  }
  if (running_ == 0 && !reaped_) {
    kill_and_reap();
    drain_by_ = now + kDrain;
  }
  // Who was told to stop does not wait for a reader who may never read again.
  if (told_to_stop_ && reaped_ && !drop_at_) drop_at_ = std::max(grace_end_, now + kDrain);
  if (drop_at_ && now >= *drop_at_) output_dropped_ = true;
  if (stop_at_ && now >= *stop_at_ && running_ > 0) stop(SIGTERM, options_.grace_after_failure);
  if (signal_at_ && now >= *signal_at_) {
    signal_at_.reset();
    stop(signal_, options_.grace);
  }
  if (kill_at_ && now >= *kill_at_ && running_ > 0) {
    if (killed_ == 0) killed_ = running_;
    signal_all(SIGKILL);
    kill_at_ = now + grace_;
  }
  if (mention_at_ && now >= *mention_at_) {
    mention_at_.reset();
    const std::string text = early_end_notice(ends_, running_, link_ != nullptr);
    if (!stopping_ && !stop_at_ && options_.on_notice && !text.empty()) options_.on_notice(text);
  }
  if (drain_by_ && now >= *drain_by_ && !output_.paused()) {
    output_.close_streams_of_strangers();
    drain_by_.reset();
  }
}

// Whatever the workers started ends with them.
void Attempt::kill_and_reap() {
  signal_all(SIGKILL);
  kill_marked(plan_.start.job.mark().c_str());
  siginfo_t info{};
  for (const Worker& worker : workers_)
    while (worker.pid > 0 && ::waitid(P_PID, static_cast<id_t>(worker.pid), &info, WEXITED | WNOWAIT) != 0 &&
           errno == EINTR) {
    }
  orphans_.kill();  // whose parents are all dead by now
  for (Worker& worker : workers_) {
    if (worker.pid <= 0) continue;
    guardian_.reap(worker.pid);
    orphans_.disown(worker.pid);
    worker.pid = -1;
  }
  reaped_ = true;
}

// Nothing runs and nothing is left to write on this machine.
bool Attempt::ended_here() const {
  if (running_ > 0 || !reaped_) return false;
  return abandoned_ || output_dropped_ || output_.finished();
}

bool Attempt::done() const {
  return ended_here() && (link_ == nullptr || verdict_.has_value() || abandoned_);
}

void Attempt::report_to_others() {
  if (link_ == nullptr || !ended_here()) return;
  if (!reported_) link_->finished(local_end());
  reported_ = true;
  if (!verdict_) verdict_ = link_->take_verdict();
}

int Attempt::timeout_ms() const {
  if (running_ == 0 && !reaped_) return 0;
  auto next = Clock::time_point::max();
  if (running_ > 0 && stop_at_) next = std::min(next, *stop_at_);
  if (signal_at_) next = std::min(next, *signal_at_);
  if (running_ > 0 && kill_at_) next = std::min(next, *kill_at_);
  if (drop_at_ && !output_dropped_) next = std::min(next, *drop_at_);
  if (drain_by_ && !output_.paused()) next = std::min(next, *drain_by_);
  if (mention_at_) next = std::min(next, *mention_at_);
  if (link_ != nullptr) next = std::min(next, hear_at_);
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, INT_MAX));
}

void Attempt::note_blames() {
  if (std::none_of(ends_.begin(), ends_.end(), [](const WorkerEnd& end) { return end.failed(); })) return;
  auto blames = find_blames(plan_.start.dump_dir, name_for_workers(plan_.start));
  for (WorkerEnd& end : ends_) end.blames = std::move(blames[end.rank]);
}

LocalEnd Attempt::local_end() {
  note_blames();
  LocalEnd end{.workers = ends_};
  for (const WorkerEnd& worker : ends_)
    if (may_be_cause(worker) && end.last_lines.size() < kMostBlamed)
      end.last_lines[worker.rank] = output_.last_lines(worker.rank - rank_of(0));
  return end;
}

}  // namespace lockstep::launcher
