#include "comm/channel/tcp_channel.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "comm/call/range.h"
#include "comm/call/stall.h"
#include "comm/channel/tcp_fabric.h"

namespace lockstep {
namespace {

// Small enough to stay in the core's own cache between arriving and being added.
constexpr std::size_t kRoomBytes = std::size_t{128} << 10;
// Messages from here on are cut into parts for the bulk connections, if there are several.
constexpr std::size_t kStripeBytes = std::size_t{256} << 10;
constexpr std::chrono::milliseconds kLookAroundEvery{100};  // looks at the world this often when asleep
constexpr std::chrono::milliseconds kQuiet{500};  // of waiting before it is told to the peers, at most
constexpr std::chrono::milliseconds kWaitForReason{200};  // for the reason of a peer that went

}  // namespace

TcpChannel::TcpChannel(std::shared_ptr<TcpFabric> fabric, std::string group, int rank,
                       std::vector<int> members, std::vector<TcpPeer> peers)
    : WireChannel(RankNames(std::move(group), members)),
      fabric_(std::move(fabric)),
      rank_(rank),
      members_(std::move(members)),
      room_(kRoomBytes) {
  for (TcpPeer& streams : peers) peers_.push_back({.streams = std::move(streams)});
  spin_.set_most(fabric_->spin());
}

TcpChannel::~TcpChannel() {
  if (failure_)
    tell_failure();
  else
    tell(FrameKind::leave, {});
  flush_news();
  for (int p = 0; p < size(); ++p) each_stream(p, [](FrameStream& stream) { stream.hang_up(); });
}

template <class Body>
void TcpChannel::each_stream(int peer, Body&& body) {
  TcpPeer& streams = peers_[static_cast<std::size_t>(peer)].streams;
  for (FrameStream& stream : streams.side) body(stream);
  for (FrameStream& stream : streams.bulk) body(stream);
}

void TcpChannel::begin(Call& call, const CallCard& card, Kind kind) {
  call_ = &call;
  card_ = card;
  kind_ = kind;
  deadline_ = Deadline::after(call.timeout);
  // Soon enough for the chain of who waits for whom to be known when the time is over.
  quiet_ = std::clamp<std::chrono::nanoseconds>(call.timeout / 4, std::chrono::milliseconds(20), kQuiet);
  if (kind == Kind::collective) history_.add(card);
}

void TcpChannel::check() {
  if (failure_) throw_record(*failure_);
}

std::string TcpChannel::where() const {
  if (call_ == nullptr) return "group " + names().group();
  // Not from the call itself: this may be asked when it is over.
  const std::string operation =
      is_message(card_) ? " in group " : ", operation " + std::to_string(card_.sequence) + " of group ";
  return describe(card_) + operation + names().group();
}

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

void TcpChannel::exchange(std::span<const Outgoing> sends, std::span<const Incoming> recvs,
                          const kernel::Reduction& reduction) {
  check();
  plan(sends, recvs);
  Waiting waiting;
  bool waited = false;
  while (!finished()) {
    if (turn(reduction)) {
      waiting.since_ns = 0;
      continue;
    }
    const std::int64_t spin_until = now_ns() + spin_.now().count();
    bool moved = false;
    while (!moved && now_ns() < spin_until) moved = turn(reduction);
    if (moved) {
      spin_.paid_off();
      waiting.since_ns = 0;
      continue;
    }
    if (!waited) spin_.was_wasted();
    waited = true;
    wait(waiting);
  }
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
  if (!recv.stream->has_head()) return false;
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
  const std::size_t element = size_of(accumulator_of(reduction.dtype));
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

// Sleeps until something moves on any connection, and takes in the news.
void TcpChannel::wait(Waiting& waiting) {
  std::vector<pollfd> fds;
  for (int p = 0; p < size(); ++p)
    each_stream(p, [&](FrameStream& stream) {
      // Of a peer that left only what it still has to say; and a frame for a later call would wake us for
      // ever.
      const bool joined = peers_[static_cast<std::size_t>(p)].state == State::joined;
      if (awaited(stream) || (joined && !stream.has_head())) fds.push_back({stream.fd(), POLLIN, 0});
    });
  for (const Sending& send : sending_)
    if (!send.done()) fds.push_back({send.stream->fd(), POLLOUT, 0});
  const auto nap = std::min<std::chrono::nanoseconds>({kLookAroundEvery, quiet_, deadline_.left()});
  const int ready = ::poll(fds.data(), static_cast<nfds_t>(fds.size()),
                           static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(nap).count()));
  if (waiting.told_ns == 0) waiting.told_ns = now_ns();
  if (waiting.since_ns == 0) waiting.since_ns = now_ns();
  if (waiting.looked_ns == 0) waiting.looked_ns = now_ns();
  const bool quiet = now_ns() - waiting.told_ns > quiet_.count();
  // Where many wait there is always news: that must not keep this rank from what it does when there is none.
  const bool looks = ready <= 0 || quiet ||
                     now_ns() - waiting.looked_ns > std::chrono::nanoseconds(kLookAroundEvery).count();
  if (looks) {
    waiting.looked_ns = now_ns();
    attend();
    if (whole_ != nullptr) whole_->attend();
    if (idle_) idle_();
  } else {
    // Only what woke us: reading every connection at every step would cost more than the step.
    for (int p = 0; p < size(); ++p)
      each_stream(p, [&](FrameStream& stream) {
        const bool woke = std::any_of(fds.begin(), fds.end(), [&](const pollfd& f) {
          return f.fd == stream.fd() && (f.revents & (POLLIN | POLLERR | POLLHUP)) != 0;
        });
        if (woke && !awaited(stream)) attend(p, stream);
      });
  }
  const std::vector<int> ranks = waiting_for();
  if (looks && call_->stall != nullptr) call_->stall->look_for_stop(waiting.since_ns);
  if (quiet) {
    waiting.told_ns = now_ns();
    tell_waits(ranks);
    mention_wait(ranks, waiting.since_ns);
  }
  // What is there counts, however late it is read: this rank itself may have been stopped.
  if (!deadline_.passed() || ranks.empty() || ready != 0) return;
  const std::vector<int> missing = numbers_at_fault(ranks);
  const double seconds = std::chrono::duration<double>(call_->timeout).count();
  std::string time = std::to_string(seconds);
  time.erase(std::max(time.find_last_not_of('0'), time.find('.') + 1) + 1);
  throw TimeoutError(missing, where() + call_->for_what() + ": no answer within " + time + " s on " +
                                  named(rank_) + "; missing: " + text_of(missing));
}

// Of the whole group, where this one is a part of it: its ranks are told there too.
bool TcpChannel::lower_rank_waits() const {
  if (whole_ != nullptr) return whole_->lower_rank_waits();
  for (int p = 0; p < rank_; ++p) {
    const bool mate = std::find(mates_.begin(), mates_.end(), p) != mates_.end();
    if (waits(p) && !(mate && waits_for_us(p))) return true;
  }
  return false;
}

bool TcpChannel::waits(int peer) const {
  return peers_[static_cast<std::size_t>(peer)].waits_ns >=
         now_ns() - 3 * std::chrono::nanoseconds(kQuiet).count();
}

bool TcpChannel::waits_for_us(int peer) const {
  std::vector<bool> seen(peers_.size());
  std::vector<int> chain = {peer};
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const int p = chain[i];
    if (p == rank_) return true;
    if (seen[static_cast<std::size_t>(p)] || !waits(p)) continue;
    seen[static_cast<std::size_t>(p)] = true;
    for (int next = 0; next < size(); ++next)
      if (peers_[static_cast<std::size_t>(p)].waits.ranks.has(next)) chain.push_back(next);
  }
  return false;
}

void TcpChannel::mention_wait(const std::vector<int>& ranks, std::int64_t since_ns) {
  if (ranks.empty() || call_->stall == nullptr || !call_->stall->due(since_ns) || lower_rank_waits()) return;
  call_->stall->say(
      {.who = named(rank_), .whom = text_of(numbers_at_fault(ranks)), .where = where() + call_->for_what()});
}

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
      each_stream(p, [&](FrameStream& stream) { attend(p, stream); });
}

void TcpChannel::attend(int peer, FrameStream& stream) {
  Peer& other = peers_[static_cast<std::size_t>(peer)];
  try {
    for (;;) {
      const FrameHeader* const header = stream.head();
      if (header == nullptr || header->kind == FrameKind::message) return;
      if (header->kind == FrameKind::data) return compare(peer, header->card);
      alignas(8) std::array<std::byte, sizeof(FailureRecord)> payload;
      const FrameHeader news = *header;
      const std::span bytes = std::span(payload).first(static_cast<std::size_t>(news.bytes));
      stream.take_news(bytes);
      heard(peer, stream, news, bytes);
    }
  } catch (const net::ConnectionLost& loss) {
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
      if (!failure_) failure_ = lockstep::named(record, names().numbers());
      throw_record(*failure_);
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
      while (other.state != State::left && !patience.passed()) {
        if (const FrameHeader* const header = stream.head(); header != nullptr) {
          if (header->kind == FrameKind::data || header->kind == FrameKind::message) break;
          attend(peer, stream);
          continue;
        }
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
  const std::string who = named(peer) + " of group " + names().group();
  const std::string address = other.streams.side.front().peer();
  if (other.state == State::left)
    throw PeerError(number_of(peer), named(peer) + " left group " + names().group() + " while " +
                                         named(rank_) + " waits for it in " + where());
  throw PeerError(number_of(peer), who + " died (" + address + " " + reason + ") while " + named(rank_) +
                                       " was in " + where());
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

void TcpChannel::tell_waits(const std::vector<int>& ranks) noexcept {
  const WaitStatus status{mask_of(ranks)};
  tell(FrameKind::status, std::as_bytes(std::span(&status, 1)));
  if (whole_ == nullptr) return;
  std::vector<int> numbers;
  for (int r : ranks) numbers.push_back(number_of(r));
  whole_->tell_waits(numbers);
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
  if (!failure_) failure_ = record_of(error);
  tell_failure();
  flush_news();
  learn_end();
}

// Of a peer whose end another rank reported: how it ended, for those who ask for its state.
void TcpChannel::learn_end() noexcept {
  if (failure_->kind != static_cast<std::int32_t>(ErrorKind::peer)) return;
  for (int p = 0; p < size(); ++p) {
    Peer& other = peers_[static_cast<std::size_t>(p)];
    if (p == rank_ || number_of(p) != failure_->rank || other.state != State::joined) continue;
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
  const FailureRecord record = numbered(*failure_, names().numbers());
  tell(FrameKind::failure, std::as_bytes(std::span(&record, 1)));
}

// As in shared memory (shm/meeting.cc): along the chain of who waits for whom, those that do not wait
// themselves.
std::vector<int> TcpChannel::at_fault(const std::vector<int>& ranks) const {
  const std::int64_t fresh = now_ns() - 3 * quiet_.count();
  std::vector<bool> seen(peers_.size());
  seen[static_cast<std::size_t>(rank_)] = true;
  std::vector<int> chain = ranks;
  std::vector<int> found;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const int r = chain[i];
    if (r < 0 || r >= size() || seen[static_cast<std::size_t>(r)]) continue;
    seen[static_cast<std::size_t>(r)] = true;
    const Peer& other = peers_[static_cast<std::size_t>(r)];
    if (other.waits_ns < fresh) {
      found.push_back(r);
      continue;
    }
    for (int next = 0; next < size(); ++next)
      if (other.waits.ranks.has(next)) chain.push_back(next);
  }
  if (found.empty()) return ranks;  // all wait for each other
  std::sort(found.begin(), found.end());
  return found;
}

// A rank that never came to this group may be held up in the whole one, and has said so there.
std::vector<int> TcpChannel::numbers_at_fault(const std::vector<int>& ranks) const {
  std::vector<int> numbers;
  for (int r : at_fault(ranks)) numbers.push_back(number_of(r));
  return whole_ == nullptr ? numbers : whole_->numbers_at_fault(numbers);
}

std::string TcpChannel::text_of(const std::vector<int>& numbers) const {
  std::string text;
  for (int number : numbers) {
    const int here = names().of_number(number);
    // One that is not in this part is in the whole, where ranks have the user's numbers.
    const std::string name = here >= 0           ? named(here)
                             : whole_ != nullptr ? whole_->named(number)
                                                 : "rank " + std::to_string(number);
    text += (text.empty() ? "" : "; ") + name;
  }
  return text;
}

std::unique_ptr<WireChannel> TcpChannel::among(const std::vector<int>& ranks, const std::string& group,
                                               std::chrono::milliseconds timeout) {
  TcpMembers meeting{.group = group, .timeout = timeout};
  meeting.watch = [this, &ranks, told_ns = now_ns()](int awaited) mutable {
    attend();
    if (whole_ != nullptr) whole_->attend();
    if (idle_) idle_();
    if (now_ns() - told_ns <= quiet_.count()) return;
    told_ns = now_ns();
    tell_waits({ranks[static_cast<std::size_t>(awaited)]});
  };
  meeting.blame = [this, &ranks](const std::vector<int>& missing) {
    std::vector<int> here;
    for (int m : missing) here.push_back(ranks[static_cast<std::size_t>(m)]);
    const std::vector<int> numbers = numbers_at_fault(here);
    return TcpMembers::Blamed{numbers, text_of(numbers)};
  };
  meeting.names = names().part(ranks);
  for (int r : ranks) {
    if (r == rank_) meeting.rank = static_cast<int>(meeting.members.size());
    meeting.members.push_back(members_[static_cast<std::size_t>(r)]);
  }
  return TcpFabric::connect(fabric_, meeting);
}

std::string TcpChannel::peer_state(int rank) const {
  switch (peers_[static_cast<std::size_t>(rank)].state) {
    case State::left: return "left";
    case State::dead: return "dead";
    case State::joined: break;
  }
  return "joined";
}

}  // namespace lockstep
