#include "launch/worker_events.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "launch/signal_watch.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Linux's abstract names: a zero byte first, gone with the last descriptor.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.sun_path) throw UsageError("--report-to: the name is too long");
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

constexpr std::size_t kMostLineBytes = 4 << 20;  // a report is a few hundred
constexpr int kBacklog = 64;

// Whether the process at the other end was of `user` when it connected, or began to listen.
bool is_of(int fd, uid_t user) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == user;
}

UniqueFd local_socket(int flags = 0) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!fd) throw SystemError("a socket for the workers' reports", errno);
  return fd;
}

std::string line_of(const nlohmann::ordered_json& event) {
  return event.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// Signals to this process as a descriptor, for the lifetime of the object. What is ignored stays so.
class SignalReader {
 public:
  SignalReader() {
    sigset_t wanted;
    sigemptyset(&wanted);
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT})
      if (!launcher::is_ignored(s)) sigaddset(&wanted, s);
    sigprocmask(SIG_BLOCK, &wanted, &before_);
    fd_.reset(::signalfd(-1, &wanted, SFD_CLOEXEC));
    if (!fd_) throw SystemError("a descriptor for signals", errno);
  }
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;
  ~SignalReader() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

  int fd() const { return fd_.get(); }
  // Gives the signal.
  int pass_on(pid_t child) const {
    signalfd_siginfo info{};
    if (::read(fd_.get(), &info, sizeof info) != sizeof info) return 0;
    // The terminal has sent its own to the child too.
    if (info.ssi_code != SI_KERNEL) ::kill(child, static_cast<int>(info.ssi_signo));
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t before_{};
  UniqueFd fd_;
};

}  // namespace

EventListener::EventListener(uid_t user)
    : name_(fmt::format("lockstep-events-{}-{:x}", ::getpid(), std::random_device{}())),
      user_(user),
      listener_(local_socket(SOCK_NONBLOCK)) {
  const auto [address, length] = address_of(name_);
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listener_.get(), kBacklog) != 0)
    throw SystemError("listening for the workers", errno);
}

int EventListener::serve(pid_t child, const Handler& handle, const SignalHandler& told) {
  const SignalReader signals;
  const UniqueFd end(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));  // readable once it has ended
  if (!end) throw SystemError("watching the workers", errno);
  // Once the child is gone only what is already there is read: a poll that finds nothing ends it, or nothing
  // but strangers, who may knock for ever.
  for (bool ended = false;;) {
    std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
    if (!ended) polled.push_back({end.get(), POLLIN, 0});
    for (const auto& [fd, peer] : peers_) polled.push_back({fd, POLLIN, 0});
    const int ready = ::poll(polled.data(), polled.size(), ended ? 0 : -1);
    if (ready == 0) break;
    bool only_strangers = ended;
    for (const pollfd& p : polled) {
      if (ready < 0 || p.revents == 0) continue;  // an interrupted poll says nothing
      if (p.fd == end.get())
        ended = true;
      else if (p.fd == signals.fd())
        note_signal(signals.pass_on(child), told);
      else if (p.fd != listener_.get())
        take(p.fd, handle);
      if (p.fd != listener_.get() || let_in()) only_strangers = false;
    }
    if (only_strangers && ready > 0) break;
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) throw SystemError("waiting for the workers", errno);
  return status;
}

void EventListener::note_signal(int signal, const SignalHandler& told) {
  if (signal == 0) return;
  if (interrupted_by_ == 0) interrupted_by_ = signal;
  if (told) told(signal);
}

bool EventListener::let_in() {
  bool any = false;
  for (int i = 0; i < kBacklog; ++i) {
    UniqueFd accepted(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!accepted) break;
    if (!is_of(accepted.get(), user_)) continue;
    any = true;
    const int number = accepted.get();
    peers_[number].fd = std::move(accepted);
  }
  return any;
}

void EventListener::take(int fd, const Handler& handle) {
  std::array<char, 65536> chunk{};
  const ssize_t got = ::read(fd, chunk.data(), chunk.size());
  if (got <= 0) {
    if (got == 0 || errno != EINTR) peers_.erase(fd);
    return;
  }
  std::string& line = peers_[fd].partial;
  std::string_view rest(chunk.data(), static_cast<std::size_t>(got));
  for (std::size_t end = 0; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
    hand_on(line.append(rest.substr(0, end)), handle);
    line.clear();
  }
  line.append(rest);
  if (line.size() <= kMostLineBytes) return;
  mention("a line of more than " + std::to_string(kMostLineBytes >> 20) + " MiB");
  peers_.erase(fd);
}

void EventListener::hand_on(const std::string& line, const Handler& handle) {
  if (nests_deeper(line)) return mention("nested deeper than " + std::to_string(kMostJsonDepth));
  try {
    handle(nlohmann::ordered_json::parse(line));
  } catch (const nlohmann::json::exception& bad) {
    mention(bad.what());
  }
}

void EventListener::mention(const std::string& what) {
  if (std::exchange(mentioned_, true)) return;
  std::fprintf(stderr, "lockstep: something that is no report of a worker was passed over: %s\n",
               what.c_str());
}

EventReporter::EventReporter(const std::string& name, uid_t user) : socket_(local_socket()) {
  const auto [address, length] = address_of(name);
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    throw SystemError("reaching the parent at " + name, errno);
  if (!is_of(socket_.get(), user))
    throw SystemError("the process at " + name + " is another user's, not the parent", EPERM);
}

EventReporter::EventReporter(Handler handler) : handler_(std::move(handler)) {}

void EventReporter::send(const nlohmann::ordered_json& event) {
  if (handler_) return handler_(event);
  pending_ += line_of(event);
  send_pending(Wait::yes);
}

void EventReporter::offer(const nlohmann::ordered_json& event) {
  if (handler_) return handler_(event);
  send_pending(Wait::no);
  if (!pending_.empty()) return;
  pending_ = line_of(event);
  const std::size_t whole = pending_.size();
  send_pending(Wait::no);
  if (pending_.size() == whole) pending_.clear();
}

void EventReporter::post(const nlohmann::ordered_json& event) {
  if (handler_) return handler_(event);
  pending_ += line_of(event);
  send_pending(Wait::no);
}

void EventReporter::flush() { send_pending(Wait::yes); }

void EventReporter::send_pending(Wait wait) {
  while (!pending_.empty()) {
    const ssize_t n = ::send(socket_.get(), pending_.data(), pending_.size(),
                             MSG_NOSIGNAL | (wait == Wait::no ? MSG_DONTWAIT : 0));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && wait == Wait::no && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n <= 0) throw SystemError("telling the parent", errno);
    pending_.erase(0, static_cast<std::size_t>(n));
  }
}

}  // namespace lockstep
