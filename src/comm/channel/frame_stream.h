// One connection between two ranks, as frames (comm/channel/frame.h). Never blocks; throws
// net::ConnectionLost.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/channel/frame.h"
#include "net/stream.h"

namespace lockstep {

// A frame on its way out.
struct OutgoingFrame {
  explicit OutgoingFrame(const FrameHeader& header) : head(write_header(header)) {}
  std::array<std::byte, kFrameHeaderBytes> head;
  std::size_t sent = 0;  // of head and payload together
};

class FrameStream {
 public:
  explicit FrameStream(std::unique_ptr<net::Stream> stream);

  int fd() const { return stream_->fd(); }
  const std::string& peer() const { return stream_->peer(); }

  // Writes what goes now of one frame. True when bytes moved. Frames go one after the other: until `frame` is
  // complete no other may be begun.
  bool send(OutgoingFrame& frame, std::span<const std::byte> payload);
  bool sending() const { return sending_; }  // in the middle of such a frame
  // News: a small frame that goes now or, as far as the connection is full, before the next one. Not while
  // sending(). When much of it waits already the peer does not listen, and it is dropped.
  void post(const FrameHeader& header, std::span<const std::byte> payload);
  bool flush();  // true when nothing posted is left

  // The header of the frame that is arriving, or null when there is none yet. Reads.
  const FrameHeader* head();
  bool has_head() const { return has_head_; }
  // Payload that is there, up to `into` and to the frame's end; how much. After its last byte the next head()
  // is the next frame's.
  std::size_t take(std::span<std::byte> into);
  std::uint64_t left() const { return has_head_ ? head_.bytes - taken_ : 0; }
  void finish_empty();  // the frame at hand has no payload
  // Is the frame at hand news, of which some is still to come?
  bool in_news() const { return has_head_ && is_news(head_.kind); }
  // The whole payload of news, until the next head(); empty while not all of it has come. Where the sender's
  // side of the connection was full, the rest comes when we have read and the sender writes again.
  std::optional<std::span<const std::byte>> take_news();

  void hang_up();  // nothing more will be sent; reads and forgets what came

 private:
  std::size_t buffered() const { return end_ - begin_; }

  std::unique_ptr<net::Stream> stream_;
  bool sending_ = false;
  std::vector<std::byte> posted_;  // whole frames; what has gone is taken off the front
  // Headers are read together with what follows them: one system call for a small frame.
  std::vector<std::byte> inbox_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  FrameHeader head_;
  bool has_head_ = false;
  std::uint64_t taken_ = 0;
  std::array<std::byte, kMostNewsBytes> news_;  // as far as it has come
};

}  // namespace lockstep
