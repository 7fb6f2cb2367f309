#include "comm/channel/frame_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/wire_bytes.h"

namespace lockstep {
namespace {

constexpr std::size_t kInboxBytes = std::size_t{16} << 10;
constexpr std::size_t kMostPosted = std::size_t{64} << 10;
// Written at a time, so that reading gets its turn.
constexpr std::size_t kMostWritten = std::size_t{256} << 10;

}  // namespace

FrameStream::FrameStream(std::unique_ptr<net::Stream> stream)
    : stream_(std::move(stream)), inbox_(kInboxBytes) {}

void FrameStream::post(const FrameHeader& header, std::span<const std::byte> payload) {
  flush();
  if (posted_.size() > kMostPosted) return;
  const auto head = write_header(header);
  posted_.insert(posted_.end(), head.begin(), head.end());
  posted_.insert(posted_.end(), payload.begin(), payload.end());
  flush();
}

bool FrameStream::flush() {
  while (!posted_.empty()) {
    const net::Bytes part(posted_);
    const std::size_t moved = stream_->write({&part, 1});
    if (moved == 0) return false;
    wire_bytes() += moved;
    posted_.erase(posted_.begin(), posted_.begin() + static_cast<std::ptrdiff_t>(moved));
  }
  return true;
}

bool FrameStream::send(OutgoingFrame& frame, std::span<const std::byte> payload) {
  if (!flush()) return false;
  const std::size_t whole = kFrameHeaderBytes + payload.size();
  std::array<net::Bytes, 2> parts;
  std::size_t count = 0;
  if (frame.sent < kFrameHeaderBytes) parts[count++] = std::span(frame.head).subspan(frame.sent);
  const std::size_t from = frame.sent > kFrameHeaderBytes ? frame.sent - kFrameHeaderBytes : 0;
  if (from < payload.size())
    parts[count++] = payload.subspan(from, std::min(payload.size() - from, kMostWritten));
  const std::size_t moved = stream_->write(std::span(parts).first(count));
  frame.sent += moved;
  wire_bytes() += moved;
  // Even when nothing counts as sent yet: TLS may have encrypted the beginning, and wants it again.
  sending_ = frame.sent < whole;
  return moved > 0;
}

const FrameHeader* FrameStream::head() {
  if (has_head_) return &head_;
  while (buffered() < kFrameHeaderBytes) {
    if (begin_ > 0) {
      std::memmove(inbox_.data(), inbox_.data() + begin_, buffered());
      end_ = buffered();
      begin_ = 0;
    }
    const std::size_t came = stream_->read(std::span(inbox_).subspan(end_));
    if (came == 0) return nullptr;
    end_ += came;
  }
  const auto header =
      read_header(std::span<const std::byte, kFrameHeaderBytes>(inbox_.data() + begin_, kFrameHeaderBytes));
  if (!header) throw net::ConnectionLost{"sent bytes that are no frame of ours"};
  begin_ += kFrameHeaderBytes;
  head_ = *header;
  has_head_ = true;
  taken_ = 0;
  return &head_;
}

std::size_t FrameStream::take(std::span<std::byte> into) {
  const auto want = static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), left()));
  if (want == 0) return 0;
  std::size_t moved = 0;
  if (buffered() > 0) {
    moved = std::min(want, buffered());
    std::memcpy(into.data(), inbox_.data() + begin_, moved);
    begin_ += moved;
  } else {
    moved = stream_->read(into.first(want));
  }
  taken_ += moved;
  if (taken_ == head_.bytes) has_head_ = false;
  return moved;
}

std::optional<std::span<const std::byte>> FrameStream::take_news() {
  const std::span whole = std::span(news_).first(static_cast<std::size_t>(head_.bytes));
  finish_empty();
  while (has_head_)
    if (take(whole.subspan(static_cast<std::size_t>(taken_))) == 0) return std::nullopt;
  return whole;
}

void FrameStream::finish_empty() {
  if (head_.bytes == 0) has_head_ = false;
}

void FrameStream::hang_up() {
  ::shutdown(stream_->fd(), SHUT_WR);
  try {
    // Closing with bytes unread would reset the connection and take away what the peer has yet to read.
    for (int i = 0; i < 64 && stream_->read(inbox_) > 0; ++i) {
    }
  } catch (const net::ConnectionLost&) {  // it has gone first
  }
}

}  // namespace lockstep
