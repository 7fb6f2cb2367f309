#include "launch/attempt.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "launch/dumps.h"
#include "launch/first_failure.h"
#include "launch/spawn.h"
#include "lockstep/base/error.h"
#include "lockstep/observe/stop_sign.h"

namespace lockstep::launcher {
namespace {

// What an epoll event is about: a kind, and which one of it.
enum class Tag : unsigned { worker, stream, signal, sink, link };

unsigned long long tag(Tag kind, std::size_t index) {
  return static_cast<unsigned long long>(kind) << 32 | static_cast<unsigned long long>(index);
}

constexpr std::chrono::milliseconds kDrain{500};     // for output that a stranger's process may still hold
constexpr std::chrono::milliseconds kAsking{250};    // for workers to write where they stand
constexpr std::chrono::milliseconds kHearing{1000};  // the others expect signs of life
constexpr std::chrono::milliseconds kEarly{5000};    // that a worker may end before the others
constexpr std::streamoff kTailBytes = 8192;
constexpr std::size_t kTailLines = 20;
constexpr std::size_t kMostBlamed = 64;  // workers of a node whose last lines are sent to the others

std::string prefix_of(int rank, const Sink& sink) {
  std::string text = "[rank " + std::to_string(rank) + "] ";
  if (!sink.coloured()) return text;
  constexpr int colours = 6;  // red to cyan
  return "\x1b[3" + std::to_string(1 + rank % colours) + "m" + text + "\x1b[0m";
}

Relay::Form form_of(Console console, Stream stream) {
  switch (console) {
    case Console::prefixed: return Relay::Form::lines;
    case Console::raw: return Relay::Form::raw;
    case Console::errors: return stream == Stream::err ? Relay::Form::lines : Relay::Form::none;
    case Console::none: return Relay::Form::none;
  }
  return Relay::Form::none;
}

UniqueFd open_or_throw(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!fd) throw SystemError("can't open " + path, errno);
  return fd;
}

UniqueFd copy_of(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!copy) throw SystemError("can't copy descriptor " + std::to_string(fd) + " for a worker", errno);
  return copy;
}

}  // namespace

Attempt::Attempt(const LaunchOptions& options, const AttemptPlan& plan, SignalWatch& signals, Sinks& sinks,
                 Link* link)
    : options_(options),
      plan_(plan),
      signals_(signals),
      sinks_(sinks),
      link_(link),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      guardian_(plan.start.job.mark()),
      workers_(static_cast<std::size_t>(options.workers)) {
  if (!epoll_) throw SystemError("epoll_create1", errno);
  orphans_.own(guardian_.pid());
  watch(signals_.fd(), EPOLLIN, tag(Tag::signal, 0));
  if (link_ != nullptr) watch(link_->fd(), EPOLLIN, tag(Tag::link, 0));
}

Attempt::~Attempt() {
  if (!reaped_) kill_and_reap();
}

void Attempt::watch(int fd, unsigned events, unsigned long long tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw SystemError("epoll_ctl", errno);
}

LaunchReport Attempt::run() {
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) start(local_rank);
  while (!done()) {
    handle_events(timeout_ms());
    handle_deadlines();
    flow();
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
  if (report.first_failed) report.last_lines = last_lines(*report.first_failed - rank_of(0));
  return report;
}

std::string Attempt::log_file(int local_rank, Stream stream) const {
  return plan_.log_folder + "/rank-" + std::to_string(rank_of(local_rank)) +
         (stream == Stream::out ? ".stdout.log" : ".stderr.log");
}

// The descriptor that becomes a worker's stream: a file, the launcher's own, or a pipe to a relay.
UniqueFd Attempt::open_stream(int local_rank, Stream stream) {
  const int rank = rank_of(local_rank);
  Sink& sink = sinks_[static_cast<std::size_t>(stream)];
  const bool tee = options_.tee.has(local_rank, stream);
  if (options_.redirects.has(local_rank, stream) && !tee)
    return open_or_throw(log_file(local_rank, stream), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND);
  const Console console = rank == 0 ? options_.console_of_rank0.value_or(options_.console) : options_.console;
  if (console == Console::raw && !tee && ::isatty(sink.fd()) == 1) return copy_of(sink.fd());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw SystemError("pipe for the output of rank " + std::to_string(rank), errno);
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  watch(read_end.get(), EPOLLIN, tag(Tag::stream, relays_.size()));
  relays_.emplace_back(Relay::Options{
      .pipe = std::move(read_end),
      .file = tee ? open_or_throw(log_file(local_rank, stream), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND)
                  : UniqueFd(),
      .sink = &sink,
      .form = form_of(console, stream),
      .prefix = prefix_of(rank, sink),
      .last = &workers_[static_cast<std::size_t>(local_rank)].last});
  return write_end;
}

void Attempt::start(int local_rank) {
  Worker& worker = workers_[static_cast<std::size_t>(local_rank)];
  const UniqueFd out = open_stream(local_rank, Stream::out);
  const UniqueFd err = open_stream(local_rank, Stream::err);
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
  watch(worker.pidfd.get(), EPOLLIN, tag(Tag::worker, static_cast<std::size_t>(local_rank)));
}

void Attempt::handle_events(int timeout_ms) {
  // epoll lists what became ready in the order in which it did, so workers' ends are seen in order.
  epoll_event events[64];
  const int count = ::epoll_wait(epoll_.get(), events, 64, timeout_ms);
  if (count < 0 && errno != EINTR) throw SystemError("epoll_wait", errno);
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<std::size_t>(events[i].data.u64 & 0xffffffff);
    switch (static_cast<Tag>(events[i].data.u64 >> 32)) {
      case Tag::worker: note_end(static_cast<int>(index)); break;
      case Tag::stream:
        if (!paused_ && !relays_[index].read_some()) close_stream(index);
        break;
      case Tag::signal:
        while (const auto signal = signals_.next()) handle_signal(*signal);
        break;
      case Tag::sink: break;  // flow() writes
      case Tag::link: hear_others(); break;
    }
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
  if (!ends_.back().failed() && ends_.size() == 1) mention_at_ = Clock::now() + kEarly;
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
  if (interrupted_by_ != 0 && Clock::now() < interrupted_at_ + kOneStop) return;
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
    if (signal != SIGPIPE) mention_stop(signal);
  }
}

// Whoever pressed Ctrl-C knows that it was heard, and what a second one would do.
void Attempt::mention_stop(int signal) {
  if (!options_.on_notice || running_ == 0) return;
  const char* const name = ::sigabbrev_np(signal);
  options_.on_notice(fmt::format(
      "SIG{}: the worker{} told to stop and may take {:g} s (--grace); once more, after {} s, "
      "kills {} at once",
      name != nullptr ? name : std::to_string(signal), running_ == 1 ? " is" : "s are",
      std::chrono::duration<double>(grace_).count(), kOneStop.count(), running_ == 1 ? "it" : "them"));
}

void Attempt::obey(const Link::Order& order) {
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
    mention_early_ends();
  }
  if (drain_by_ && now >= *drain_by_ && !paused_) {
    close_streams_of_strangers();
    drain_by_.reset();
  }
}

// Programs may end at different times, but the others may also wait for one that is gone: said once.
void Attempt::mention_early_ends() {
  if (stopping_ || stop_at_ || !options_.on_notice) return;
  const std::string here = link_ != nullptr ? " on this machine" : "";
  if (running_ == 0) {
    if (link_ != nullptr)
      options_.on_notice("all ranks" + here + " have ended (status 0); waiting for those of the others");
    return;
  }
  std::string text = "rank " + std::to_string(ends_.front().rank) + " ended (status 0) " +
                     std::to_string(kEarly.count() / 1000) + " s ago";
  if (ends_.size() > 1) text += ", and " + std::to_string(ends_.size() - 1) + " more since,";
  text +=
      " while " + std::to_string(running_) + " other rank" + (running_ == 1 ? "" : "s") + here + " still run";
  options_.on_notice(text + (running_ == 1 ? "s" : ""));
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

void Attempt::close_stream(std::size_t index) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, relays_[index].fd(), nullptr);
  relays_[index].finish();
}

// All of the job's processes are gone; a pipe that is still open belongs to one that we may not kill.
void Attempt::close_streams_of_strangers() {
  for (std::size_t i = 0; i < relays_.size(); ++i)
    if (relays_[i].open()) close_stream(i);
}

void Attempt::flow() {
  for (std::size_t i = 0; i < sinks_.size(); ++i) {
    Sink& sink = sinks_[i];
    sink.pump();
    if (sink.waiting() == sink_watched_[i]) continue;
    sink_watched_[i] = sink.waiting();
    if (sink.waiting())
      watch(sink.fd(), EPOLLOUT, tag(Tag::sink, i));
    else
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, sink.fd(), nullptr);
  }
  // Like any program whose output nobody reads any more, or can be written any more.
  if (sinks_[0].broken() && interrupted_by_ == 0 && running_ > 0) interrupt(SIGPIPE);
  const bool pause = sinks_[0].full() || sinks_[1].full();
  if (pause == paused_) return;
  paused_ = pause;
  for (std::size_t i = 0; i < relays_.size(); ++i) {
    if (!relays_[i].open()) continue;
    if (pause)
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, relays_[i].fd(), nullptr);
    else
      watch(relays_[i].fd(), EPOLLIN, tag(Tag::stream, i));
  }
}

// Nothing runs and nothing is left to write on this machine.
bool Attempt::ended_here() const {
  if (running_ > 0 || !reaped_) return false;
  if (abandoned_ || output_dropped_) return true;
  if (sinks_[0].waiting() || sinks_[1].waiting()) return false;
  return std::none_of(relays_.begin(), relays_.end(), [](const Relay& relay) { return relay.open(); });
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
  if (drain_by_ && !paused_) next = std::min(next, *drain_by_);
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
      end.last_lines[worker.rank] = last_lines(worker.rank - rank_of(0));
  return end;
}

// From memory, or from the files where the stream went straight there.
std::vector<std::string> Attempt::last_lines(int local_rank) const {
  std::vector<std::string> lines = workers_[static_cast<std::size_t>(local_rank)].last.take();
  for (const Stream stream : {Stream::out, Stream::err}) {
    if (!options_.redirects.has(local_rank, stream) || options_.tee.has(local_rank, stream)) continue;
    std::ifstream file(log_file(local_rank, stream), std::ios::binary | std::ios::ate);
    const std::streamoff bytes = file.tellg();
    file.seekg(std::max<std::streamoff>(0, bytes - kTailBytes));
    LastLines tail;
    for (std::string line; std::getline(file, line);) tail.add(line);
    for (std::string& line : tail.take()) lines.push_back(std::move(line));
  }
  if (lines.size() > kTailLines) lines.erase(lines.begin(), lines.end() - kTailLines);
  return lines;
}

}  // namespace lockstep::launcher
