// Throws bytes at a lane (comm/channel/frame_stream.h), in hostile pieces, and takes frames off it as
// TcpChannel does. Whatever they are, each frame that the lane gives is one that stands there, its payload is
// the bytes behind it, nothing is written beyond the memory that was offered, and what is no frame ends the
// connection.
//
// The other way, a stream that takes little at a time and, like TLS, may have begun to work on what it did
// not take, gets the same bytes again until it has them, and whole frames one after the other.
//
// The first byte of an input says how the rest is cut into pieces.
#include <cstring>
#include <memory>

#include "base/fuzz_driver.h"
#include "comm/channel/frame_stream.h"

namespace lockstep {
namespace {

using fuzz::accepted;
using fuzz::require;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// Gives `input` in pieces of sizes that `dice` makes, then ends. What is written to it is kept.
class Wire final : public net::Stream {
 public:
  Wire(std::string input, std::uint64_t seed, std::string& written)
      : input_(std::move(input)), random_(seed, 0, 0), written_(written) {}

  int fd() const override { return -1; }
  const std::string& peer() const override { return peer_; }

  std::size_t read(std::span<std::byte> into) override {
    if (random_.below(4) == 0 && ++empty_ % 64 != 0) return 0;
    const std::size_t left = input_.size() - at_;
    if (left == 0) throw net::ConnectionLost{"closed the connection"};
    const std::size_t piece = random_.below(3) == 0 ? into.size() : 1 + random_.below(97);
    const std::size_t moved = std::min({piece, into.size(), left});
    std::memcpy(into.data(), input_.data() + at_, moved);
    at_ += moved;
    return moved;
  }

  std::size_t write(std::span<const net::Bytes> parts) override {
    std::string offered;
    for (const net::Bytes& part : parts)
      offered.append(reinterpret_cast<const char*>(part.data()), part.size());
    require(offered.starts_with(begun_), "the rest of a write changed");
    if (random_.below(2) == 0) {  // begins without taking anything
      begun_ = offered.substr(0, begun_.size() + random_.below(50));
      return 0;
    }
    const std::size_t moved = std::min<std::size_t>(offered.size(), begun_.size() + random_.below(200));
    written_ += offered.substr(0, moved);
    begun_.clear();
    return moved;
  }

 private:
  std::string input_;
  std::size_t at_ = 0;
  std::size_t empty_ = 0;
  RandomStream random_;
  std::string begun_;
  std::string& written_;
  std::string peer_ = "a stranger";
};

bool same(const FrameHeader& a, const FrameHeader& b) {
  return a.kind == b.kind && a.bytes == b.bytes && std::memcmp(&a.card, &b.card, sizeof a.card) == 0;
}

// What a receiver does with a header besides believing it.
void look_at(const FrameHeader& header) {
  require(describe(header.card).find('\n') == std::string::npos, "a call is described in several lines");
  CallCard other = header.card;
  other.count ^= 1;
  require(!same_call(header.card, other), "different calls are the same");
}

void look_at(const FailureRecord& record) {
  try {
    throw_record(record);
  } catch (const Error& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos, "an error of several lines");
  }
}

// How many frames the lane gave.
int receive(const std::string& input, std::uint64_t seed) {
  std::string unused;
  FrameStream lane(std::make_unique<Wire>(input, seed, unused));
  RandomStream random(seed, 1, 0);
  std::size_t at = 0;  // in `input`, of the frame at hand
  int frames = 0;
  try {
    for (;;) {
      const FrameHeader* const head = lane.head();
      if (head == nullptr) continue;
      require(input.size() - at >= kFrameHeaderBytes, "a frame out of nothing");
      const auto header = read_header(bytes_of(input).subspan(at).first<kFrameHeaderBytes>());
      require(header && same(*header, *head), "not the frame that stands there");
      require(lane.head() == head && lane.left() == header->bytes, "a head that changes");
      look_at(*header);
      at += kFrameHeaderBytes;
      ++frames;
      if (header->bytes == 0) {
        lane.finish_empty();
        require(!lane.has_head(), "an empty frame that does not end");
        continue;
      }
      const bool news = header->kind != FrameKind::data && header->kind != FrameKind::message;
      require(!news || header->bytes <= sizeof(FailureRecord), "news that is too long");
      std::string payload;
      while (payload.size() < header->bytes) {
        // Room with a fence behind it.
        std::array<std::byte, 300 + 1> room;
        const std::size_t offered = random.below(300);
        room[offered] = std::byte{0xa5};
        const std::size_t came = lane.take(std::span(room).first(offered));
        require(came <= offered && room[offered] == std::byte{0xa5}, "more than was asked for");
        require(came <= header->bytes - payload.size(), "more than the frame has");
        payload.append(reinterpret_cast<const char*>(room.data()), came);
        require(input.compare(at, payload.size(), payload) == 0, "not the bytes that stand there");
        require(lane.left() == header->bytes - payload.size(), "a wrong rest");
      }
      at += payload.size();
      if (header->kind == FrameKind::failure) {
        FailureRecord record;
        std::memcpy(&record, payload.data(), sizeof record);
        look_at(record);
      }
    }
  } catch (const net::ConnectionLost& lost) {
    // Either all of it was read, or something that is no frame stands there.
    if (lost.reason == "closed the connection") return frames;
    require(input.size() - at >= kFrameHeaderBytes &&
                !read_header(bytes_of(input).subspan(at).first<kFrameHeaderBytes>()),
            "a frame was taken for none");
  }
  return frames;
}

// Sends the input as payloads of frames, with news in between where the lane allows it.
void send(const std::string& input, std::uint64_t seed) {
  std::string written;
  std::string expected;
  RandomStream random(seed, 2, 0);
  FrameStream lane(std::make_unique<Wire>("", seed, written));
  const auto add = [&](const FrameHeader& header, std::span<const std::byte> payload) {
    const auto head = write_header(header);
    expected.append(reinterpret_cast<const char*>(head.data()), head.size());
    expected.append(reinterpret_cast<const char*>(payload.data()), payload.size());
  };
  const WaitStatus waits{{1, 2, 3, 4}};
  const auto news = std::as_bytes(std::span(&waits, 1));
  const FrameHeader status{.kind = FrameKind::status, .bytes = sizeof waits, .card = {}};
  for (std::size_t at = 0; at < input.size();) {
    const std::size_t length = std::min<std::size_t>(input.size() - at, random.below(500));
    const auto payload = bytes_of(input).subspan(at, length);
    at += length + 1;
    const FrameHeader header{.kind = FrameKind::data, .bytes = length, .card = {}};
    if (random.below(3) == 0) {
      add(status, news);
      lane.post(status, news);
    }
    const std::size_t begin = expected.size();
    add(header, payload);
    OutgoingFrame frame(header);
    while (frame.sent < kFrameHeaderBytes + length) {
      // As long as the lane is not in the middle of it, news goes before.
      if (random.below(4) == 0 && !lane.sending()) {
        const std::string frame_as_sent = expected.substr(begin);
        expected.resize(begin);
        add(status, news);
        expected += frame_as_sent;
        lane.post(status, news);
      }
      lane.send(frame, payload);
    }
  }
  while (!lane.flush()) {
  }
  require(written == expected, "other bytes than were sent");
}

}  // namespace
}  // namespace lockstep

void lockstep::fuzz::one(std::string_view bytes) {
  if (bytes.empty() || bytes.size() > (1 << 16)) return;
  const std::string input(bytes.substr(1));
  const auto how = static_cast<std::uint8_t>(bytes[0]);
  accepted = receive(input, how) > 0;
  send(input, how);
}

std::vector<std::string> lockstep::fuzz::seeds() {
  const auto frame = [](FrameKind kind, const std::string& payload) {
    FrameHeader header{.kind = kind, .bytes = payload.size(), .card = {}};
    header.card.sequence = 7;
    header.card.count = 3;
    std::memcpy(header.card.algorithm, "ring", 4);
    const auto head = write_header(header);
    return std::string(reinterpret_cast<const char*>(head.data()), head.size()) + payload;
  };
  const auto failure = [&](const Error& error) {
    const FailureRecord record = record_of(error);
    return frame(FrameKind::failure, std::string(reinterpret_cast<const char*>(&record), sizeof record));
  };
  const std::string waits(sizeof(WaitStatus), '\3');
  const auto pieces = [](char how) { return std::string(1, how); };
  return {
      pieces(1) + frame(FrameKind::data, "0123456789ab"),
      pieces(2) + frame(FrameKind::message, "") + frame(FrameKind::message, std::string(700, 'x')),
      pieces(3) + frame(FrameKind::join, "") + frame(FrameKind::status, waits) +
          frame(FrameKind::data, "1234") + frame(FrameKind::leave, ""),
      pieces(4) + frame(FrameKind::status, waits) + failure(TimeoutError({1, 200}, "nobody came")),
      pieces(5) + failure(PeerError(3, "it died")) + frame(FrameKind::leave, ""),
      pieces(6) + frame(FrameKind::data, std::string(20'000, 'y')) + frame(FrameKind::data, "z"),
      // Nothing but headers: most changes hit what is checked.
      pieces(7) + frame(FrameKind::join, ""),
      pieces(8) + frame(FrameKind::leave, ""),
  };
}
