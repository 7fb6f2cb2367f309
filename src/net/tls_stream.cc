#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "net/silence.h"
#include "net/socket.h"
#include "net/tls.h"

namespace lockstep::net {
namespace {

// Encrypted before the socket is written to. Measured on loopback: less costs system calls, more leaves the
// cache.
constexpr std::size_t kBatch = 4 * kTlsRecord;

// Walks over the parts of one write.
class Walk {
 public:
  explicit Walk(std::span<const Bytes> parts) : parts_(parts) { settle(); }
  bool done() const { return at_ == parts_.size(); }
  Bytes here() const { return parts_[at_].subspan(offset_); }
  // False when there are fewer.
  bool skip(std::size_t bytes) {
    while (bytes > 0 && !done()) {
      const std::size_t step = std::min(bytes, here().size());
      bytes -= step;
      offset_ += step;
      settle();
    }
    return bytes == 0;
  }

 private:
  void settle() {
    while (at_ < parts_.size() && offset_ == parts_[at_].size()) {
      ++at_;
      offset_ = 0;
    }
  }
  std::span<const Bytes> parts_;
  std::size_t at_ = 0;
  std::size_t offset_ = 0;
};

class TlsStream final : public Stream {
 public:
  TlsStream(std::unique_ptr<TlsConnection> link, std::string peer)
      : link_(std::move(link)), peer_(std::move(peer)) {
    tune(link_->fd());
  }

  int fd() const override { return link_->fd(); }
  const std::string& peer() const override { return peer_; }
  bool pending() const override { return SSL_pending(link_->ssl()) > 0 || link_->unread(); }

  // A batch counts as written once all of its ciphertext has left; until then `begun_` says how many bytes of
  // what the caller brings again are in it.
  std::size_t write(std::span<const Bytes> parts) override {
    Walk walk(parts);
    std::size_t written = 0;
    for (;;) {
      if (!link_->flush()) {
        silence_.check(fd());
        return written;
      }
      if (!walk.skip(begun_)) throw std::logic_error("a TLS stream was not given the rest of a write again");
      written += std::exchange(begun_, 0);
      if (walk.done()) return written;
      for (Walk ahead = walk; !ahead.done() && begun_ < kBatch;) begun_ += encrypt(ahead);
    }
  }

  std::size_t read(std::span<std::byte> into) override {
    const std::size_t got = link_->read(into);
    if (got == 0 && !into.empty()) silence_.check(fd());
    return got;
  }

 private:
  // The next record: straight from the caller's memory where that fills it, gathered where parts are smaller,
  // so that a header and its payload travel together.
  std::size_t encrypt(Walk& walk) {
    Bytes record = walk.here().first(std::min(walk.here().size(), kTlsRecord));
    walk.skip(record.size());
    if (record.size() < kTlsRecord && !walk.done()) {
      std::size_t gathered = 0;
      for (;;) {
        std::memcpy(gather_.data() + gathered, record.data(), record.size());
        gathered += record.size();
        if (gathered == kTlsRecord || walk.done()) break;
        record = walk.here().first(std::min(walk.here().size(), kTlsRecord - gathered));
        walk.skip(record.size());
      }
      record = std::span(gather_).first(gathered);
    }
    link_->write(record);
    return record.size();
  }

  std::unique_ptr<TlsConnection> link_;
  std::string peer_;
  SilenceWatch silence_;
  std::size_t begun_ = 0;
  std::array<std::byte, kTlsRecord> gather_;
};

}  // namespace

std::unique_ptr<Stream> tls_stream(std::unique_ptr<TlsConnection> link, std::string peer) {
  return std::make_unique<TlsStream>(std::move(link), std::move(peer));
}

}  // namespace lockstep::net
