// What ranks tell each other beside data: that one waits, leaves, has failed, and what its end means.
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "comm/channel/tcp_channel.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kWaitForReason{200};  // of a peer that went

}  // namespace

void TcpChannel::catch_up() {
  check();
  const Deadline patience = Deadline::after(kWaitForReason);
  do {
    attend();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (!patience.passed());
}

void TcpChannel::attend() {
  for (int p = 0; p < size(); ++p)
    if (peers_[static_cast<std::size_t>(p)].state == State::joined)
      each_stream(p, [&](FrameStream& stream) {
        attend(p, stream);
        let_news_go(stream);
      });
}

// What had no room when it was posted, half a frame perhaps: the peer may have read since.
void TcpChannel::let_news_go(FrameStream& stream) noexcept {
  if (stream.sending()) return;
  try {
    stream.flush();
  } catch (const net::ConnectionLost&) {  // whoever reads there finds out
  }
}

void TcpChannel::attend(int peer, FrameStream& stream) {
  Peer& other = peers_[static_cast<std::size_t>(peer)];
  try {
    for (;;) {
      const FrameHeader* const header = stream.head();
      if (header == nullptr || header->kind == FrameKind::message) return;
      if (header->kind == FrameKind::data) return compare(peer, header->card);
      const FrameHeader news = *header;
      const auto payload = stream.take_news();
      if (!payload) return;
      heard(peer, stream, news, *payload);
    }
  } catch (const net::ConnectionLost& loss) {
    // Only last_words() reads here then: there is nothing more on this connection.
    if (other.state == State::dead) throw;
    // A peer that leaves or fails says so before it closes any.
    if (other.state == State::joined || (other.state == State::left && awaited(stream)))
      lost(peer, loss.reason);
  }
}

// A rank that calls something else may do so because it knows of a death that this one has not noticed yet.
void TcpChannel::differ(const std::string& line) {
  if (!std::exchange(differing_, true)) attend();
  throw MismatchError(line);
}

void TcpChannel::compare(int peer, const CallCard& card) {
  if (const CallCard* const own = history_.other_than(card))
    differ(who_called_what(names(), {rank_, *own}, {peer, card}));
}

// It has not come to the collective and can't before the peer has left it. The peer said so on the connection
// of messages: none of its messages is still on the way.
void TcpChannel::compare_waits(int peer, const CallCard& card) {
  if (kind_ != Kind::point_to_point || card.sequence <= card_.sequence) return;
  const std::vector<int> ranks = waiting_for();
  if (!peers_[static_cast<std::size_t>(peer)].waits.ranks.has(rank_) ||
      std::find(ranks.begin(), ranks.end(), peer) == ranks.end())
    return;
  differ(who_waits_elsewhere(names(), {rank_, card_}, {peer, card}));
}

void TcpChannel::heard(int peer, const FrameStream& stream, const FrameHeader& header,
                       std::span<const std::byte> payload) {
  Peer& other = peers_[static_cast<std::size_t>(peer)];
  switch (header.kind) {
    case FrameKind::leave: other.state = State::left; return;
    case FrameKind::join: return;
    case FrameKind::failure: {
      FailureRecord record;
      std::memcpy(&record, payload.data(), sizeof record);
      failure_.keep(lockstep::named(record, names().numbers()));
      throw_record(failure_.record());
    }
    case FrameKind::status:
      std::memcpy(&other.waits, payload.data(), sizeof other.waits);
      other.waits_ns = now_ns();
      if (is_message(header.card)) return;
      compare(peer, header.card);
      if (&stream == &other.streams.side.front()) compare_waits(peer, header.card);
      return;
    case FrameKind::data:
    case FrameKind::message: return;
  }
}

// What a peer that goes still has to say; true when its end was seen.
bool TcpChannel::last_words(int peer) {
  const Peer& other = peers_[static_cast<std::size_t>(peer)];
  const Deadline patience = Deadline::after(kWaitForReason);
  bool ended = false;
  each_stream(peer, [&](FrameStream& stream) {
    try {
      while (other.state != State::left) {
        // What is there is read, however late it is: this rank itself may have had no core, and another
        // connection may have taken all of the time.
        if (const FrameHeader* const header = stream.head(); header != nullptr) {
          if (!is_news(header->kind)) break;
          attend(peer, stream);
          if (!stream.in_news()) continue;
        }
        if (patience.passed()) break;
        pollfd one{stream.fd(), POLLIN, 0};
        ::poll(&one, 1, 10);
      }
    } catch (const net::ConnectionLost&) {
      ended = true;
    }
  });
  return ended;
}

// Why it went, if it still said so on another connection; then that it went.
void TcpChannel::lost(int peer, const std::string& reason) {
  Peer& other = peers_[static_cast<std::size_t>(peer)];
  if (other.state != State::left) {
    other.state = State::dead;
    last_words(peer);
  }
  // Who is gone here because of something in the whole group has said so there.
  if (whole_ != nullptr) whole_->catch_up();
  if (other.state == State::left) throw agreement_.left(peer);
  const std::string address = other.streams.side.front().peer();
  throw PeerError(number_of(peer), named(peer) + " of group " + names().group() + " died (" + address + " " +
                                       reason + ") while " + named(rank_) + " was in " + where());
}

// Best effort: what does not go now, or would cut another frame in two, is not sent; the connection's end
// then says as much.
void TcpChannel::tell(FrameKind kind, std::span<const std::byte> payload) noexcept {
  for (int p = 0; p < size(); ++p) {
    Peer& other = peers_[static_cast<std::size_t>(p)];
    if (p == rank_ || other.state != State::joined || other.streams.side.empty()) continue;
    // The last words on every connection: on each they come behind what was sent there before, and a peer
    // reads only those where it expects something.
    const bool last = kind == FrameKind::failure || kind == FrameKind::leave;
    bool told = false;
    each_stream(p, [&](FrameStream& stream) {
      if (stream.sending() || (told && !last)) return;
      told = true;
      try {
        stream.post({.kind = kind, .bytes = payload.size(), .card = card_}, payload);
      } catch (const net::ConnectionLost&) {  // it is gone; it needs no telling
      } catch (const std::bad_alloc&) {
      }
    });
  }
}

// What was told last has a moment to leave: nobody may come back to send it.
void TcpChannel::flush_news() noexcept {
  const Deadline patience = Deadline::after(kWaitForReason);
  for (int p = 0; p < size(); ++p)
    each_stream(p, [&](FrameStream& stream) {
      try {
        while (!stream.flush() && !patience.passed()) {
          pollfd one{stream.fd(), POLLOUT, 0};
          ::poll(&one, 1, 10);
        }
      } catch (const net::ConnectionLost&) {  // it needs no telling
      }
    });
}

void TcpChannel::fail(const Error& error) noexcept {
  failure_.keep(record_of(error));
  tell_failure();
  flush_news();
  learn_end();
}

// Of a peer whose end another rank reported: how it ended, for those who ask for its state.
void TcpChannel::learn_end() noexcept {
  if (failure_.record().kind != static_cast<std::int32_t>(ErrorKind::peer)) return;
  for (int p = 0; p < size(); ++p) {
    Peer& other = peers_[static_cast<std::size_t>(p)];
    if (p == rank_ || number_of(p) != failure_.record().rank || other.state != State::joined) continue;
    try {
      if (last_words(p) && other.state == State::joined) other.state = State::dead;
    } catch (const std::exception&) {  // it failed, too: then it is not the one that ended
    }
  }
}

// Also when this rank has only heard of it: a peer that has not yet would take this rank's end for the
// reason.
void TcpChannel::tell_failure() noexcept {
  if (std::exchange(told_failure_, true)) return;
  const FailureRecord record = numbered(failure_.record(), names().numbers());
  tell(FrameKind::failure, std::as_bytes(std::span(&record, 1)));
}

}  // namespace lockstep
