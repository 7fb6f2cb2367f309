#include "net/gate.h"

#include <netinet/in.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <list>
#include <thread>

#include "base/start_thread.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "net/arrivals.h"
#include "net/handshake.h"
#include "net/refusal_log.h"
#include "net/socket.h"
#include "net/tls.h"

namespace lockstep::net {
namespace {

UniqueFd listen_at(const std::string& address, std::uint16_t port) {
  const SocketAddress where = [&] {
    try {
      return resolve(address, port, Lookup::numbers).front();
    } catch (const NameServiceBusy& busy) {
      throw SystemError(busy.text);
    }
  }();
  if (where.host() == "0.0.0.0" || where.host() == "::")
    throw UsageError("refusing to listen on all interfaces (" + address +
                     "); accepted: one address of this machine");
  UniqueFd fd = make_socket(where.family());
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (where.family() == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (::bind(fd.get(), where.get(), where.length) != 0 || ::listen(fd.get(), 4096) != 0) {
    const int error = errno;
    const std::string what = "can't listen at " + Endpoint{address, port}.text();
    if (error == EADDRINUSE) throw AddressInUse(what, error);
    throw SystemError(what, error);
  }
  return fd;
}

}  // namespace

// Everything here but the constructor, the destructor and what they call runs on the gate's thread.
class Gate::Impl {
 public:
  explicit Impl(const GateOptions& options)
      : security_(options.security),
        key_(plain_key(options.secret)),
        patience_(options.patience),
        most_unproven_(static_cast<std::size_t>(std::max(1, options.most_unproven))),
        on_refused_(options.on_refused),
        socket_(listen_at(options.address, options.port)),
        endpoint_{options.address, local_end(socket_.get()).port()},
        io_(1),
        door_(io_, socket_.get()),
        pause_(io_) {
    try {
      if (security_ == Security::tls) tls_ = std::make_unique<TlsContext>(options.secret, TlsSide::gate);
      wait_at_door();
      thread_ = start_thread("the thread that lets peers in", [this] { run(); });
    } catch (...) {
      door_.release();  // or it and socket_ would both close it
      throw;
    }
  }

  ~Impl() {
    io_.stop();
    thread_.join();
    for (const auto& guest : guests_) guest->let_go();
    door_.release();
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Endpoint& endpoint() const { return endpoint_; }
  Arrivals& arrivals() { return arrivals_; }

 private:
  // A connection that has not proven itself yet.
  struct Guest {
    Guest(asio::io_context& io, std::unique_ptr<Handshake> with, std::string from)
        : handshake(std::move(with)), watch(io, handshake->fd()), patience(io), peer(std::move(from)) {}
    Guest(const Guest&) = delete;
    Guest& operator=(const Guest&) = delete;
    ~Guest() { let_go(); }
    // Asio lets go of the socket before its owner closes it or passes it on.
    void let_go() {
      if (watch.is_open()) watch.release();
    }
    std::unique_ptr<Handshake> handshake;  // owns the socket
    asio::posix::stream_descriptor watch;  // only waits for it
    asio::steady_timer patience;
    std::string peer;
    std::list<std::shared_ptr<Guest>>::iterator place;
  };

  void run() {
    for (;;) {
      try {
        io_.run();
        return;
      } catch (const std::exception& error) {  // no memory, for example: one connection less, the gate stays
        log().warn("gate at {}: {}", endpoint_.text(), error.what());
      }
    }
  }

  void wait_at_door() {
    door_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const asio::error_code& error) {
      if (error) return;
      if (let_in()) return wait_at_door();
      // No descriptors or no memory left: those who knock wait in the kernel's queue meanwhile.
      pause_.expires_after(std::chrono::milliseconds(100));
      pause_.async_wait([this](const asio::error_code& stopped) {
        if (!stopped) wait_at_door();
      });
    });
  }

  // A few at a time, so that those inside get their turn however many knock. False: out of resources.
  bool let_in() {
    for (int i = 0; i < 32; ++i) {
      UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          refusals_.note(endpoint_, "somebody", "no descriptor or memory left to accept a connection");
          return false;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
        continue;  // it went before it was accepted
      }
      const std::string peer = remote_end(socket.get()).text();
      try {
        receive_guest(std::move(socket), peer);
      } catch (const std::exception& error) {
        refusals_.note(endpoint_, peer, error.what());
      }
    }
    return true;
  }

  void receive_guest(UniqueFd socket, const std::string& peer) {
    if (guests_.size() >= most_unproven_)
      turn_away(guests_.front(), "did not prove itself before many others came");
    tune(socket.get());
    auto handshake = tls_ != nullptr ? tls_gate_handshake(*tls_, std::move(socket), peer)
                                     : plain_gate_handshake(key_, std::move(socket), peer);
    auto guest = std::make_shared<Guest>(io_, std::move(handshake), peer);
    guest->place = guests_.insert(guests_.end(), guest);
    guest->patience.expires_after(patience_);
    guest->patience.async_wait([this, guest](const asio::error_code& stopped) {
      if (!stopped && guest->handshake) turn_away(guest, "did not prove itself in time");
    });
    advance(guest);
  }

  void advance(const std::shared_ptr<Guest>& guest) {
    try {
      const Handshake::Wants wants = guest->handshake->advance();
      if (wants == Handshake::Wants::nothing) return admit(guest);
      const auto direction = wants == Handshake::Wants::read ? asio::posix::stream_descriptor::wait_read
                                                             : asio::posix::stream_descriptor::wait_write;
      guest->watch.async_wait(direction, [this, guest](const asio::error_code& stopped) {
        if (!stopped && guest->handshake) advance(guest);
      });
    } catch (const HandshakeFailed& failed) {
      using Why = HandshakeFailed::Why;
      if (on_refused_ && (failed.why == Why::wrong_secret || failed.why == Why::other_security))
        on_refused_(guest->peer, failed.text);
      turn_away(guest, failed.text);
    } catch (const std::exception& error) {
      turn_away(guest, error.what());
    }
  }

  void admit(const std::shared_ptr<Guest>& guest) {
    if (arrivals_.full()) return turn_away(guest, "came while too many connections wait to be taken");
    forget(guest);
    Gate::Arrival arrival;
    arrival.hello = guest->handshake->hello();
    arrival.stream = guest->handshake->stream();
    guest->handshake.reset();
    arrivals_.add(std::move(arrival));
  }

  // By value: `guest` may be the list's own element, which goes.
  void turn_away(const std::shared_ptr<Guest> guest, const std::string& why) {
    refusals_.note(endpoint_, guest->peer, why);
    forget(guest);
    guest->handshake.reset();
  }

  void forget(const std::shared_ptr<Guest>& guest) {
    guest->patience.cancel();
    guest->let_go();
    guests_.erase(guest->place);
  }

  Security security_;
  Secret key_;
  std::chrono::milliseconds patience_;
  std::size_t most_unproven_;
  std::function<void(const std::string&, const std::string&)> on_refused_;
  std::unique_ptr<TlsContext> tls_;  // null without TLS
  UniqueFd socket_;
  Endpoint endpoint_;
  Arrivals arrivals_;
  RefusalLog refusals_;
  asio::io_context io_;
  asio::posix::stream_descriptor door_;  // waits for socket_
  asio::steady_timer pause_;
  std::list<std::shared_ptr<Guest>> guests_;  // the longest here first
  std::thread thread_;
};

Gate::Gate(const GateOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Gate::~Gate() = default;

Endpoint Gate::endpoint() const { return impl_->endpoint(); }

std::unique_ptr<Stream> Gate::wait_for(const std::string& hello, Deadline deadline) {
  return impl_->arrivals().take(&hello, deadline).stream;
}

Gate::Arrival Gate::next(Deadline deadline) { return impl_->arrivals().take(nullptr, deadline); }

int Gate::ready_fd() const { return impl_->arrivals().ready_fd(); }

}  // namespace lockstep::net
