// The messages of one exchange on their way: what goes where, and what comes.
#include <algorithm>
#include <cstring>

#include "comm/call/range.h"
#include "comm/channel/tcp_channel.h"

namespace lockstep {
namespace {

// Messages from here on are cut into parts for the bulk connections, if there are several.
constexpr std::size_t kStripeBytes = std::size_t{256} << 10;

}  // namespace

void TcpChannel::plan(std::span<const Outgoing> sends, std::span<const Incoming> recvs) {
  sending_.clear();
  receiving_.clear();
  const bool message = kind_ == Kind::point_to_point;
  const auto cut = [&](int peer, std::size_t bytes, auto&& add) {
    TcpPeer& streams = peers_[static_cast<std::size_t>(peer)].streams;
    if (message) return add(streams.side.front(), Range{0, bytes});
    if (bytes == 0) return;  // a collective's empty parts are empty on both sides
    const int parts = bytes >= kStripeBytes ? static_cast<int>(streams.bulk.size()) : 1;
    for (int i = 0; i < parts; ++i)
      if (const Range part = part_of(bytes, parts, i, 1); part.count() > 0)
        add(streams.bulk[static_cast<std::size_t>(i)], part);
  };
  for (const Outgoing& send : sends) {
    if (peers_[static_cast<std::size_t>(send.peer)].state == State::left) lost(send.peer, "left");
    cut(send.peer, send.bytes.size(), [&](FrameStream& stream, Range part) {
      const FrameHeader header{
          .kind = message ? FrameKind::message : FrameKind::data, .bytes = part.count(), .card = card_};
      sending_.push_back({.what = {send.peer, send.bytes.subspan(part.begin, part.count())},
                          .stream = &stream,
                          .frame = OutgoingFrame(header)});
    });
  }
  for (const Incoming& recv : recvs)
    cut(recv.peer, recv.bytes.size(), [&](FrameStream& stream, Range part) {
      receiving_.push_back({.what = {recv.peer, recv.bytes.subspan(part.begin, part.count()), recv.arrival},
                            .stream = &stream});
    });
}

bool TcpChannel::finished() const {
  return std::all_of(sending_.begin(), sending_.end(), [](const Sending& s) { return s.done(); }) &&
         std::all_of(receiving_.begin(), receiving_.end(), [](const Receiving& r) { return r.done(); });
}

bool TcpChannel::turn(const kernel::Reduction& reduction) {
  bool moved = false;
  for (Sending& send : sending_) {
    if (send.done()) continue;
    try {
      moved |= send.stream->send(send.frame, send.what.bytes);
    } catch (const net::ConnectionLost& loss) {
      lost(send.what.peer, loss.reason);
    }
  }
  for (Receiving& recv : receiving_) {
    if (recv.done()) continue;
    try {
      moved |= pull(recv, reduction);
    } catch (const net::ConnectionLost& loss) {
      lost(recv.what.peer, loss.reason);
    }
  }
  return moved;
}

// The first frame that is no news must be the message that is expected here.
bool TcpChannel::open(Receiving& recv) {
  attend(recv.what.peer, *recv.stream);
  if (!recv.stream->has_head() || recv.stream->in_news()) return false;
  const FrameHeader& header = *recv.stream->head();
  const Arrived message{
      .from = recv.what.peer, .card = header.card, .bytes = header.bytes, .expected = recv.what.bytes.size()};
  if (!fits(card_, message)) differ(why_unfit(names(), {rank_, card_}, where(), message));
  if (call_->divisor == kDivisorOfOthers && header.card.divisor != kDivisorOfOthers) {
    call_->divisor = header.card.divisor;
    card_.divisor = header.card.divisor;
  }
  recv.opened = true;
  if (recv.what.bytes.size() >= kStripeBytes) recv.opened_ns = now_ns();
  if (header.bytes == 0) recv.stream->finish_empty();
  return true;
}

void TcpChannel::note_rate(const Receiving& recv) {
  if (!recv.done() || recv.opened_ns == 0) return;
  double& rate = peers_[static_cast<std::size_t>(recv.what.peer)].s_per_byte;
  const double now =
      static_cast<double>(now_ns() - recv.opened_ns) * 1e-9 / static_cast<double>(recv.what.bytes.size());
  rate = rate == 0 ? now : std::min(rate, now);
}

bool TcpChannel::pull(Receiving& recv, const kernel::Reduction& reduction) {
  if (!recv.opened && !open(recv)) return false;
  if (recv.done()) return true;
  if (recv.what.arrival == Arrival::store) {
    const std::size_t came = recv.stream->take(recv.what.bytes.subspan(recv.got));
    recv.got += came;
    note_rate(recv);
    return came > 0;
  }
  std::memcpy(room_.data(), recv.rest.data(), recv.tail);
  const std::size_t came = recv.stream->take(std::span(room_).subspan(recv.tail));
  if (came > 0) fold(recv, reduction, came);
  note_rate(recv);
  return came > 0;
}

// Adds the whole elements in the room; what is left of one waits for its other bytes.
void TcpChannel::fold(Receiving& recv, const kernel::Reduction& reduction, std::size_t came) {
  const std::size_t element = size_of(reduction.dtype);
  const std::size_t there = recv.tail + came;
  const std::size_t whole = there / element * element;
  std::byte* const to = recv.what.bytes.data() + recv.got - recv.tail;
  if (recv.what.arrival == Arrival::fold_before)
    kernel::combine(to, room_.data(), to, whole / element, reduction);
  else
    kernel::combine(to, to, room_.data(), whole / element, reduction);
  recv.got += came;
  recv.tail = there - whole;
  std::memcpy(recv.rest.data(), room_.data() + whole, recv.tail);
}

std::vector<int> TcpChannel::waiting_for() const {
  std::vector<int> ranks;
  for (const Sending& send : sending_)
    if (!send.done()) ranks.push_back(send.what.peer);
  for (const Receiving& recv : receiving_)
    if (!recv.done()) ranks.push_back(recv.what.peer);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

bool TcpChannel::awaited(const FrameStream& stream) const {
  return std::any_of(receiving_.begin(), receiving_.end(),
                     [&](const Receiving& recv) { return recv.stream == &stream && !recv.done(); });
}

}  // namespace lockstep
