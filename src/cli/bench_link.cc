#include "cli/bench_link.h"

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
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

// Linux's abstract names: a zero byte first, gone with the last descriptor.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.sun_path) throw UsageError("--report-to: the name is too long");
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

UniqueFd local_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw SystemError("bench: socket", errno);
  return fd;
}

// Signals to this process as a descriptor, for the lifetime of the object.
class SignalReader {
 public:
  SignalReader() {
    sigset_t wanted;
    sigemptyset(&wanted);
    for (const int s : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&wanted, s);
    sigprocmask(SIG_BLOCK, &wanted, &before_);
    fd_.reset(::signalfd(-1, &wanted, SFD_CLOEXEC));
    if (!fd_) throw SystemError("bench: signalfd", errno);
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

BenchListener::BenchListener()
    : name_(fmt::format("lockstep-bench-{}-{:x}", ::getpid(), std::random_device{}())),
      listener_(local_socket()) {
  const auto [address, length] = address_of(name_);
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listener_.get(), 64) != 0)
    throw SystemError("bench: listening for the workers", errno);
}

int BenchListener::serve(pid_t child, const std::function<void(const nlohmann::ordered_json&)>& handle) {
  const SignalReader signals;
  const UniqueFd end(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));  // readable once it has ended
  if (!end) throw SystemError("bench: watching the workers", errno);
  // Once the child is gone only what is already there is read: a poll that finds nothing ends it.
  for (bool ended = false;;) {
    std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
    if (!ended) polled.push_back({end.get(), POLLIN, 0});
    for (const auto& [fd, peer] : peers_) polled.push_back({fd, POLLIN, 0});
    const int ready = ::poll(polled.data(), polled.size(), ended ? 0 : -1);
    if (ready == 0) break;
    for (const pollfd& p : polled) {
      if (ready < 0 || p.revents == 0) continue;  // an interrupted poll says nothing
      if (p.fd == end.get())
        ended = true;
      else if (p.fd == signals.fd())
        interrupted_by_ = signals.pass_on(child);
      else
        take(p.fd, handle);
    }
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) throw SystemError("bench: waiting for the workers", errno);
  return status;
}

void BenchListener::take(int fd, const std::function<void(const nlohmann::ordered_json&)>& handle) {
  if (fd == listener_.get()) {
    UniqueFd accepted(::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC));
    const int number = accepted.get();
    if (accepted) peers_[number].fd = std::move(accepted);
    return;
  }
  std::array<char, 65536> chunk{};
  const ssize_t got = ::read(fd, chunk.data(), chunk.size());
  if (got <= 0) {
    if (got == 0 || errno != EINTR) peers_.erase(fd);
    return;
  }
  std::string& text = peers_[fd].partial;
  text.append(chunk.data(), static_cast<std::size_t>(got));
  for (std::size_t end = 0; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
    const auto event = nlohmann::ordered_json::parse(text.substr(0, end), nullptr, false);
    if (!event.is_discarded()) handle(event);
  }
}

BenchReporter::BenchReporter(const std::string& name) : socket_(local_socket()) {
  const auto [address, length] = address_of(name);
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    throw SystemError("bench: reaching the parent at " + name, errno);
}

BenchReporter::BenchReporter(Handler handler) : handler_(std::move(handler)) {}

void BenchReporter::send(const nlohmann::ordered_json& event) {
  if (handler_) return handler_(event);
  const std::string line = event.dump() + "\n";
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t n = ::send(socket_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw SystemError("bench: telling the parent", errno);
    sent += static_cast<std::size_t>(n);
  }
}

}  // namespace lockstep::cli
