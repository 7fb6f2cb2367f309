#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "lockstep/base/fd.h"
#include "net/silence.h"
#include "net/socket.h"
#include "net/socket_io.h"
#include "net/stream.h"

namespace lockstep::net {
namespace {

class PlainStream final : public Stream {
 public:
  PlainStream(int connected_socket, std::string peer) : socket_(connected_socket), peer_(std::move(peer)) {
    tune(socket_.get());
  }

  int fd() const override { return socket_.get(); }
  const std::string& peer() const override { return peer_; }

  std::size_t write(std::span<const Bytes> parts) override {
    std::array<iovec, 16> pieces;  // what is beyond waits for the next call
    std::size_t count = 0;
    std::size_t wanted = 0;
    for (std::size_t i = 0; i < parts.size() && count < pieces.size(); ++i) {
      if (parts[i].empty()) continue;
      pieces[count++] = {const_cast<std::byte*>(parts[i].data()), parts[i].size()};
      wanted += parts[i].size();
    }
    if (wanted == 0) return 0;
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    for (;;) {
      const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) return static_cast<std::size_t>(sent);
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) throw ConnectionLost{reason_of(errno)};
      silence_.check(socket_.get());
      return 0;
    }
  }

  std::size_t read(std::span<std::byte> into) override {
    const std::size_t got = receive(socket_.get(), into);
    if (got == 0) silence_.check(socket_.get());
    return got;
  }

 private:
  UniqueFd socket_;
  std::string peer_;
  SilenceWatch silence_;
};

}  // namespace

std::unique_ptr<Stream> plain_stream(int connected_socket, std::string peer) {
  return std::make_unique<PlainStream>(connected_socket, std::move(peer));
}

}  // namespace lockstep::net
