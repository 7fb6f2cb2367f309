#include "launch/worker_output.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "launch/open_file.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr std::streamoff kTailBytes = 8192;
constexpr std::size_t kTailLines = 20;
constexpr int kLogFlags = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND;

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

}  // namespace

WorkerOutput::WorkerOutput(const LaunchOptions& options, int first_rank, std::string log_folder, Sinks& sinks,
                           Events& events)
    : options_(options),
      first_rank_(first_rank),
      log_folder_(std::move(log_folder)),
      sinks_(sinks),
      events_(events),
      last_(static_cast<std::size_t>(options.workers)) {}

std::string WorkerOutput::log_file(int local_rank, Stream stream) const {
  return log_folder_ + "/rank-" + std::to_string(first_rank_ + local_rank) +
         (stream == Stream::out ? ".stdout.log" : ".stderr.log");
}

UniqueFd WorkerOutput::open(int local_rank, Stream stream) {
  const int rank = first_rank_ + local_rank;
  Sink& sink = sinks_[static_cast<std::size_t>(stream)];
  const bool tee = options_.tee.has(local_rank, stream);
  if (options_.redirects.has(local_rank, stream) && !tee)
    return open_or_throw(log_file(local_rank, stream), kLogFlags);
  const Console console = rank == 0 ? options_.console_of_rank0.value_or(options_.console) : options_.console;
  if (console == Console::raw && !tee && ::isatty(sink.fd()) == 1) return copy_of(sink.fd());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw SystemError("pipe for the output of rank " + std::to_string(rank), errno);
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  events_.watch(read_end.get(), EPOLLIN, About::stream, relays_.size());
  relays_.emplace_back(
      Relay::Options{.pipe = std::move(read_end),
                     .file = tee ? open_or_throw(log_file(local_rank, stream), kLogFlags) : UniqueFd(),
                     .sink = &sink,
                     .form = form_of(console, stream),
                     .prefix = prefix_of(rank, sink),
                     .last = &last_[static_cast<std::size_t>(local_rank)]});
  return write_end;
}

void WorkerOutput::read(std::size_t index) {
  if (!paused_ && !relays_[index].read_some()) close(index);
}

void WorkerOutput::close(std::size_t index) {
  events_.forget(relays_[index].fd());
  relays_[index].finish();
}

void WorkerOutput::close_streams_of_strangers() {
  for (std::size_t i = 0; i < relays_.size(); ++i)
    if (relays_[i].open()) close(i);
}

void WorkerOutput::flow() {
  for (std::size_t i = 0; i < sinks_.size(); ++i) {
    Sink& sink = sinks_[i];
    sink.pump();
    if (sink.waiting() == sink_watched_[i]) continue;
    sink_watched_[i] = sink.waiting();
    if (sink.waiting())
      events_.watch(sink.fd(), EPOLLOUT, About::sink, i);
    else
      events_.forget(sink.fd());
  }
  const bool pause = sinks_[0].full() || sinks_[1].full();
  if (pause == paused_) return;
  paused_ = pause;
  for (std::size_t i = 0; i < relays_.size(); ++i) {
    if (!relays_[i].open()) continue;
    if (pause)
      events_.forget(relays_[i].fd());
    else
      events_.watch(relays_[i].fd(), EPOLLIN, About::stream, i);
  }
}

bool WorkerOutput::finished() const {
  if (sinks_[0].waiting() || sinks_[1].waiting()) return false;
  return std::none_of(relays_.begin(), relays_.end(), [](const Relay& relay) { return relay.open(); });
}

std::vector<std::string> WorkerOutput::last_lines(int local_rank) const {
  std::vector<std::string> lines = last_[static_cast<std::size_t>(local_rank)].take();
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
