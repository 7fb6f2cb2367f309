#include "comm/channel/tcp_fabric.h"

#include <poll.h>

#include <algorithm>
#include <thread>

#include "comm/channel/tcp_channel.h"
#include "net/secret.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kLongestTurn{5};
constexpr std::chrono::milliseconds kGlance{50};
constexpr std::chrono::milliseconds kLastWords{200};

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 1469598103934665603U;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

// Group names grow with every split; a hello does not.
std::string hello_of(const std::string& group, int from, int to, int lane) {
  return "channel " + group.substr(0, 64) + " " + std::to_string(hash_of(group)) + " " +
         std::to_string(from) + ">" + std::to_string(to) + " " + std::to_string(lane);
}

// Empty when nothing is watched.
std::function<void()> watch_for(int awaited, const TcpMeeting& meeting) {
  if (!meeting.watch) return {};
  return [awaited, &meeting] { meeting.watch(awaited); };
}

std::unique_ptr<net::Stream> wait_watched(net::Gate& gate, const std::string& hello, Deadline deadline,
                                          const std::function<void()>& watch) {
  if (!watch) return gate.wait_for(hello, deadline);
  for (;;) {
    watch();
    const Deadline until = Deadline::after(std::min<std::chrono::nanoseconds>(kGlance, deadline.left()));
    if (auto stream = gate.wait_for(hello, until)) return stream;
    if (!deadline.passed()) continue;
    watch();  // this rank itself may have been stopped: what it then finds out counts
    return nullptr;
  }
}

// True when the other side has taken all of these connections, false when the deadline passed.
bool joined(TcpPeer& peer, Deadline deadline, const std::function<void()>& watch) {
  const auto took = [&](TcpLane& lane) {
    while (lane.head() == nullptr) {
      if (watch) watch();
      if (deadline.passed()) return false;
      pollfd one{lane.fd(), POLLIN, 0};
      ::poll(&one, 1, static_cast<int>(kGlance.count()));
    }
    if (lane.head()->kind == FrameKind::failure) {
      FailureRecord record;
      lane.take_news(std::as_writable_bytes(std::span(&record, 1)));
      throw_record(record);
    }
    if (lane.head()->kind != FrameKind::join) throw net::ConnectionLost{"left"};
    lane.finish_empty();
    return true;
  };
  return std::all_of(peer.side.begin(), peer.side.end(), took) &&
         std::all_of(peer.bulk.begin(), peer.bulk.end(), took);
}

// Without a word the end of these connections would look like this rank's death.
void leave(std::vector<TcpPeer>& peers, FrameKind kind, std::span<const std::byte> why) noexcept {
  const auto part = [&](TcpLane& lane) {
    try {
      lane.post({.kind = kind, .bytes = why.size(), .card = {}}, why);
      lane.hang_up();
    } catch (const net::ConnectionLost&) {  // it has gone first
    } catch (const std::bad_alloc&) {
    }
  };
  for (TcpPeer& peer : peers) {
    for (TcpLane& lane : peer.side) part(lane);
    for (TcpLane& lane : peer.bulk) part(lane);
  }
}

}  // namespace

TcpFabric::TcpFabric(TcpFabricOptions options)
    : options_(std::move(options)),
      gate_({.address = options_.address, .secret = options_.secret, .security = options_.security}) {}

std::unique_ptr<WireChannel> TcpFabric::connect(const std::shared_ptr<TcpFabric>& fabric,
                                                const TcpMeeting& meeting) {
  std::vector<TcpPeer> peers(meeting.members.size());
  try {
    fabric->connect(meeting, peers);
  } catch (const Error& error) {
    // In a part ranks have other numbers than in this error: there they ask the whole group.
    const FailureRecord record = record_of(error);
    if (meeting.names.size() == 0)
      leave(peers, FrameKind::failure, std::as_bytes(std::span(&record, 1)));
    else
      leave(peers, FrameKind::leave, {});
    throw;
  } catch (...) {
    leave(peers, FrameKind::leave, {});
    throw;
  }
  return std::make_unique<TcpChannel>(fabric, meeting.group, meeting.rank, meeting.members, std::move(peers));
}

// The connections that a later rank dialled; false when the deadline passed.
bool TcpFabric::take(int from, const TcpMeeting& meeting, Deadline deadline, TcpPeer& to) {
  const auto watch = watch_for(from, meeting);
  for (int lane = 0; lane <= options_.streams; ++lane) {
    auto stream = wait_watched(gate_, hello_of(meeting.group, from, meeting.rank, lane), deadline, watch);
    if (stream == nullptr) return false;
    TcpLane& taken = (lane == 0 ? to.side : to.bulk).emplace_back(std::move(stream));
    taken.post({.kind = FrameKind::join, .bytes = 0, .card = {}}, {});
  }
  return true;
}

void TcpFabric::connect(const TcpMeeting& meeting, std::vector<TcpPeer>& peers) {
  const Deadline deadline = Deadline::after(meeting.timeout);
  const std::string& group = meeting.group;
  const int rank = meeting.rank;
  const int size = static_cast<int>(meeting.members.size());
  const int lanes = options_.streams + 1;
  const auto add = [&](int peer, int lane, std::unique_ptr<net::Stream> stream) {
    TcpPeer& to = peers[static_cast<std::size_t>(peer)];
    (lane == 0 ? to.side : to.bulk).emplace_back(std::move(stream));
  };
  const RankNames names = meeting.names.size() == 0 ? RankNames(group, meeting.members) : meeting.names;
  const auto named = [&](int r) { return names.named(r); };
  const auto timeout = [&](const std::vector<int>& missing, const std::string& what) {
    TcpMeeting::Blamed blamed;
    for (int r : missing) {
      blamed.numbers.push_back(names.number(r));
      blamed.text += (blamed.text.empty() ? "" : "; ") + named(r);
    }
    if (meeting.blame) blamed = meeting.blame(missing);
    return TimeoutError(blamed.numbers, what + "; missing: " + blamed.text);
  };
  // One that does not answer must not keep this rank from the others: each has a while in turn.
  std::vector<std::pair<int, int>> pending;  // peer and lane
  for (int peer = 0; peer < rank; ++peer)
    for (int lane = 0; lane < lanes; ++lane) pending.emplace_back(peer, lane);
  const auto turn = std::min<std::chrono::nanoseconds>(kLongestTurn, meeting.timeout / 3);
  while (!pending.empty()) {
    std::vector<std::pair<int, int>> later;
    for (const auto& [peer, lane] : pending) {
      if (!later.empty() && later.back().first == peer) {
        later.emplace_back(peer, lane);
        continue;
      }
      const auto watch = watch_for(peer, meeting);
      if (watch) watch();
      const bool last = deadline.left() <= turn;
      const Deadline until = last ? deadline : Deadline::after(turn);
      const auto member = static_cast<std::size_t>(meeting.members[static_cast<std::size_t>(peer)]);
      const std::string what =
          "group " + group + ": " + named(rank) + " cannot connect to " + named(peer) + ": ";
      try {
        add(peer, lane,
            net::dial(endpoints_[member], options_.secret, options_.security,
                      hello_of(group, rank, peer, lane), until, options_.address, watch));
      } catch (const TimeoutError& error) {
        if (!error.missing().empty()) throw;  // what was watched
        if (last) throw timeout({peer}, what + error.what());
        later.emplace_back(peer, lane);
      } catch (const PeerError& error) {
        if (error.rank() >= 0) throw;
        if (!until.passed()) throw PeerError(names.number(peer), what + error.what());
        if (last) throw timeout({peer}, what + error.what());
        later.emplace_back(peer, lane);
      }
    }
    pending = std::move(later);
  }
  // The side that was dialled says that it has taken a connection: one that was let in may otherwise wait at
  // the gate of a rank that never comes.
  std::vector<int> missing;
  for (int i = 1; i < size; ++i) {
    const int peer = (rank + i) % size;  // those that dial this rank first: they wait for it
    TcpPeer& to = peers[static_cast<std::size_t>(peer)];
    const auto watch = watch_for(peer, meeting);
    try {
      if (!(peer > rank ? take(peer, meeting, deadline, to) : joined(to, deadline, watch)))
        missing.push_back(peer);
    } catch (const net::ConnectionLost& loss) {
      const Deadline patience = Deadline::after(kLastWords);
      while (watch && !patience.passed()) {  // the whole group may know why
        watch();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      throw PeerError(names.number(peer), "group " + group + ": " + named(peer) + " " + loss.reason +
                                              " while " + named(rank) + " was connecting");
    }
  }
  if (!missing.empty()) {
    std::string text;
    for (int r : missing) text += (text.empty() ? "" : ", ") + named(r);
    throw timeout(missing, "group " + group + ": no connection between " + named(rank) + " at " +
                               endpoint().text() + " and " + text);
  }
}

}  // namespace lockstep
