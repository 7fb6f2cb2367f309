#include "comm/channel/tcp_channel.h"

#include <poll.h>

#include <algorithm>

#include "comm/channel/tcp_fabric.h"

namespace lockstep {
namespace {

// Small enough to stay in the core's own cache between arriving and being added.
constexpr std::size_t kRoomBytes = std::size_t{128} << 10;
constexpr std::chrono::nanoseconds kLookAroundEvery = std::chrono::milliseconds(100);  // while it sleeps

}  // namespace

TcpChannel::TcpChannel(std::shared_ptr<TcpFabric> fabric, std::string group, int rank,
                       std::vector<int> members, std::vector<TcpPeer> peers)
    : WireChannel(RankNames(std::move(group), members)),
      fabric_(std::move(fabric)),
      rank_(rank),
      members_(std::move(members)),
      agreement_(*this, rank, static_cast<int>(peers.size()), naming()),
      room_(kRoomBytes) {
  for (TcpPeer& streams : peers) peers_.push_back({.streams = std::move(streams)});
  spin_.set_most(fabric_->spin());
}

TcpChannel::~TcpChannel() {
  if (failure_.any())
    tell_failure();
  else
    tell(FrameKind::leave, {});
  flush_news();
  for (int p = 0; p < size(); ++p) each_stream(p, [](FrameStream& stream) { stream.hang_up(); });
}

void TcpChannel::begin(Call& call, const CallCard& card, Kind kind) {
  call_ = &call;
  card_ = card;
  kind_ = kind;
  purpose_ = call.shown().purpose;
  // Soon enough for the chain of who waits for whom to be known when the time is over.
  post_every_ = std::clamp<std::chrono::nanoseconds>(call.timeout / 4, std::chrono::milliseconds(20),
                                                     kLongestPostEvery);
  agreement_.begin(call, post_every_);
  if (kind == Kind::collective) history_.add(card);
}

// Not from the call itself: this may be asked when it is over.
std::string TcpChannel::where() const {
  if (call_ == nullptr) return "group " + names().group();
  const std::string operation =
      is_message(card_) ? " in group " : ", operation " + std::to_string(card_.sequence) + " of group ";
  return describe(card_) + operation + names().group() + (purpose_.empty() ? "" : ", " + purpose_);
}

void TcpChannel::exchange(std::span<const Outgoing> sends, std::span<const Incoming> recvs,
                          const kernel::Reduction& reduction) {
  failure_.check();
  plan(sends, recvs);
  agreement_.start_wait();
  looked_ns_ = 0;
  bool waited = false;
  while (!finished()) {
    if (turn(reduction)) {
      agreement_.moved();
      continue;
    }
    const std::int64_t spin_until = now_ns() + spin_.now().count();
    bool moved = false;
    while (!moved && now_ns() < spin_until) moved = turn(reduction);
    if (moved) {
      spin_.paid_off();
      agreement_.moved();
      continue;
    }
    if (!waited) spin_.was_wasted();
    waited = true;
    wait();
  }
}

// Sleeps until something moves on any connection, and takes in the news.
void TcpChannel::wait() {
  std::vector<pollfd> fds;
  for (int p = 0; p < size(); ++p)
    each_stream(p, [&](FrameStream& stream) {
      // Of a peer that left only what it still has to say; and a frame for a later call would wake us for
      // ever.
      const bool joined = peers_[static_cast<std::size_t>(p)].state == State::joined;
      if (awaited(stream) || (joined && (!stream.has_head() || stream.in_news())))
        fds.push_back({stream.fd(), POLLIN, 0});
    });
  for (const Sending& send : sending_)
    if (!send.done()) fds.push_back({send.stream->fd(), POLLOUT, 0});
  const auto look_every = std::min(kLookAroundEvery, post_every_);
  const auto sleep = std::min(look_every, agreement_.deadline().left());
  const int ready = ::poll(fds.data(), static_cast<nfds_t>(fds.size()),
                           static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(sleep).count()));
  if (looked_ns_ == 0) looked_ns_ = now_ns();
  // Where many wait there is always news: that must not keep this rank from what it does when there is none.
  const bool looks = ready <= 0 || now_ns() - looked_ns_ > look_every.count();
  if (looks) {
    looked_ns_ = now_ns();
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
  if (!looks) return;
  const std::vector<int> ranks = waiting_for();
  agreement_.look(ranks);
  // What is there counts, however late it is read: this rank itself may have been stopped.
  if (ready != 0) return;
  if (const auto late = agreement_.overdue(ranks)) throw *late;
}

void TcpChannel::post(const Notice& mine) {
  const WaitStatus status{mask_of(mine.waits_for)};
  tell(FrameKind::status, std::as_bytes(std::span(&status, 1)));
}

std::optional<Notice> TcpChannel::read(int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer.waits_ns < now_ns() - 3 * post_every_.count()) return std::nullopt;
  return Notice{.waits_for = peer.waits.ranks.ranks()};
}

std::unique_ptr<WireChannel> TcpChannel::among(const std::vector<int>& ranks, const std::string& group,
                                               std::chrono::milliseconds timeout) {
  TcpMembers meeting{.group = group, .timeout = timeout};
  meeting.watch = [this, &ranks, told_ns = now_ns()](int awaited) mutable {
    attend();
    if (whole_ != nullptr) whole_->attend();
    if (idle_) idle_();
    if (now_ns() - told_ns <= post_every_.count()) return;
    told_ns = now_ns();
    agreement_.post({ranks[static_cast<std::size_t>(awaited)]});
  };
  meeting.blame = [this, &ranks](const std::vector<int>& missing) {
    std::vector<int> here;
    for (int m : missing) here.push_back(ranks[static_cast<std::size_t>(m)]);
    return agreement_.blame(here);
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
