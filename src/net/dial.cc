#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>
#include <thread>

#include "lockstep/base/error.h"
#include "net/gate.h"
#include "net/handshake.h"
#include "net/socket.h"
#include "net/tls.h"

namespace lockstep::net {
namespace {

using Why = HandshakeFailed::Why;
constexpr std::chrono::seconds kPatience{5};  // for one attempt
constexpr std::chrono::milliseconds kCallBetweenEvery{
    50};  // while nothing comes, `between` is called this often

class Dialler {
 public:
  Dialler(const Endpoint& to, const Secret& secret, Security security, const std::string& hello,
          Deadline deadline, const std::string& from, const std::function<void()>& between)
      : to_(to), key_(plain_key(secret)), hello_(hello), deadline_(deadline), from_(from), between_(between) {
    if (security == Security::tls) tls_.emplace(secret, TlsSide::dialler);
  }

  std::unique_ptr<Stream> dial() {
    const auto begin = Clock::now();
    std::chrono::milliseconds pause{5};
    for (;;) {
      for (const SocketAddress& address : addresses()) {
        if (auto stream = attempt(address)) return stream;
        if (deadline_.passed()) break;
      }
      if (between_) between_();
      if (deadline_.passed()) give_up(Clock::now() - begin);
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, deadline_.left()));
      pause = std::min(pause * 2, std::chrono::milliseconds(250));
    }
  }

 private:
  // None when the name service asks for patience.
  std::vector<SocketAddress> addresses() {
    try {
      return resolve(to_.host, to_.port, Lookup::names);
    } catch (const NameServiceBusy& busy) {
      last_ = busy.text;
      return {};
    }
  }

  // Null: worth another try, and `last_` says why this one failed.
  std::unique_ptr<Stream> attempt(const SocketAddress& address) {
    const Deadline patience =
        Deadline::after(std::min<std::chrono::nanoseconds>(kPatience, deadline_.left()));
    UniqueFd socket = connected(address, patience);
    if (!socket) return nullptr;
    tune(socket.get());
    answered_ = true;
    const std::string peer = address.text();
    const auto handshake = tls_ ? tls_dial_handshake(*tls_, std::move(socket), peer, hello_)
                                : plain_dial_handshake(key_, std::move(socket), peer, hello_);
    try {
      for (;;) {
        const Handshake::Wants wants = handshake->advance();
        if (wants == Handshake::Wants::nothing) return handshake->stream();
        if (!ready(handshake->fd(), wants == Handshake::Wants::read ? POLLIN : POLLOUT, patience)) {
          last_ = "does not finish the handshake";
          return nullptr;
        }
      }
    } catch (const HandshakeFailed& failed) {
      if (failed.why != Why::dropped) refuse(failed);
      last_ = failed.text;
      return nullptr;
    }
  }

  bool ready(int fd, short events, Deadline patience) {
    while (between_) {
      const auto glance = std::min<std::chrono::nanoseconds>(kCallBetweenEvery, patience.left());
      if (wait_ready(fd, events, Deadline::after(glance))) return true;
      between_();
      if (patience.passed()) return false;
    }
    return wait_ready(fd, events, patience);
  }

  UniqueFd connected(const SocketAddress& address, Deadline patience) {
    UniqueFd socket = make_socket(address.family());
    if (!from_.empty()) bind_to(socket.get(), address.family());
    int error = 0;
    if (::connect(socket.get(), address.get(), address.length) != 0) error = errno;
    if (error == EINPROGRESS || error == EINTR) {
      if (!ready(socket.get(), POLLOUT, patience)) {
        last_ = "does not answer";
        return {};
      }
      socklen_t length = sizeof error;
      if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    }
    if (error != 0) {
      last_ = std::generic_category().message(error);
      return {};
    }
    // On one machine, a port that nobody listens at may be given to the dialling socket itself, which then
    // connects to itself.
    if (local_end(socket.get()).text() == remote_end(socket.get()).text()) {
      last_ = std::generic_category().message(ECONNREFUSED);
      return {};
    }
    return socket;
  }

  void bind_to(int socket, int family) const {
    const SocketAddress own = [&] {
      try {
        return resolve(from_, 0, Lookup::numbers).front();
      } catch (const NameServiceBusy& busy) {
        throw SystemError(busy.text);
      }
    }();
    if (own.family() != family) return;
    const int on = 1;
    ::setsockopt(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (::bind(socket, own.get(), own.length) != 0)
      throw SystemError("can't connect from this machine's address " + from_, errno);
  }

  [[noreturn]] void refuse(const HandshakeFailed& failed) const {
    const std::string who = "whoever listens at " + to_.text() + " ";
    switch (failed.why) {
      case Why::wrong_secret:
        throw PeerError(-1, who +
                                "does not know this job's secret; give every machine the same --secret-file, "
                                "LOCKSTEP_SECRET_FILE or LOCKSTEP_SECRET");
      case Why::other_security:
        throw PeerError(-1, who + failed.text + "; set LOCKSTEP_TLS (or --plaintext) alike on every machine");
      default: throw PeerError(-1, who + failed.text + "; is the port another program's?");
    }
  }

  [[noreturn]] void give_up(std::chrono::nanoseconds after) const {
    const std::string seconds =
        std::to_string(std::chrono::duration_cast<std::chrono::seconds>(after).count());
    if (answered_)
      throw PeerError(-1, "whoever listens at " + to_.text() + " " + last_ +
                              " before it proved itself, for " + seconds +
                              " s; is it this job's, with the same secret and LOCKSTEP_TLS?");
    throw TimeoutError({}, "nobody listens at " + to_.text() + " after " + seconds + " s (" + last_ +
                               "); is the worker or agent there running, and can this machine reach it?");
  }

  const Endpoint& to_;
  Secret key_;
  const std::string& hello_;
  Deadline deadline_;
  const std::string& from_;
  const std::function<void()>& between_;
  std::optional<TlsContext> tls_;
  bool answered_ = false;  // somebody accepted a connection
  std::string last_ = "no time to try";
};

}  // namespace

std::unique_ptr<Stream> dial(const Endpoint& to, const Secret& secret, Security security,
                             const std::string& hello, Deadline deadline, const std::string& from,
                             const std::function<void()>& between) {
  return Dialler(to, secret, security, hello, deadline, from, between).dial();
}

}  // namespace lockstep::net
