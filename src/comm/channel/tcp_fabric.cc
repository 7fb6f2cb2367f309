#include "comm/channel/tcp_fabric.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "comm/channel/tcp_channel.h"
#include "lockstep/base/fnv.h"
#include "net/secret.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kLongestTurn{5};
constexpr std::chrono::milliseconds kLookAroundForPeers{50};
constexpr std::chrono::milliseconds kWaitForFirstReason{200};

// Group names grow with every split; a hello does not.
std::string hello_of(const std::string& group, int from, int to, int number) {
  return "channel " + group.substr(0, 64) + " " + std::to_string(fnv1a(group)) + " " + std::to_string(from) +
         ">" + std::to_string(to) + " " + std::to_string(number);
}

// Empty when nothing is watched.
std::function<void()> watch_for(int awaited, const TcpMembers& members) {
  if (!members.watch) return {};
  return [awaited, &members] { members.watch(awaited); };
}

std::unique_ptr<net::Stream> wait_watched(net::Gate& gate, const std::string& hello, Deadline deadline,
                                          const std::function<void()>& watch) {
  if (!watch) return gate.wait_for(hello, deadline);
  for (;;) {
    watch();
    const Deadline until =
        Deadline::after(std::min<std::chrono::nanoseconds>(kLookAroundForPeers, deadline.left()));
    if (auto stream = gate.wait_for(hello, until)) return stream;
    if (!deadline.passed()) continue;
    watch();  // this rank itself may have been stopped: what it then finds out counts
    return nullptr;
  }
}

// True when the other side has taken all of these connections, false when the deadline passed.
bool joined(TcpPeer& peer, Deadline deadline, const std::function<void()>& watch) {
  const auto more_may_come = [&](const FrameStream& stream) {
    if (watch) watch();
    if (deadline.passed()) return false;
    pollfd one{stream.fd(), POLLIN, 0};
    ::poll(&one, 1, static_cast<int>(kLookAroundForPeers.count()));
    return true;
  };
  const auto took = [&](FrameStream& stream) {
    while (stream.head() == nullptr)
      if (!more_may_come(stream)) return false;
    if (stream.head()->kind == FrameKind::failure) {
      auto payload = stream.take_news();
      for (; !payload; payload = stream.take_news())
        if (!more_may_come(stream)) return false;
      FailureRecord record;
      std::memcpy(&record, payload->data(), sizeof record);
      throw_record(record);
    }
    if (stream.head()->kind != FrameKind::join) throw net::ConnectionLost{"left"};
    stream.finish_empty();
    return true;
  };
  return std::all_of(peer.side.begin(), peer.side.end(), took) &&
         std::all_of(peer.bulk.begin(), peer.bulk.end(), took);
}

// Without a word the end of these connections would look like this rank's death.
void leave(std::vector<TcpPeer>& peers, FrameKind kind, std::span<const std::byte> why) noexcept {
  const auto part = [&](FrameStream& stream) {
    try {
      stream.post({.kind = kind, .bytes = why.size(), .card = {}}, why);
      stream.hang_up();
    } catch (const net::ConnectionLost&) {  // it has gone first
    } catch (const std::bad_alloc&) {
    }
  };
  for (TcpPeer& peer : peers) {
    for (FrameStream& stream : peer.side) part(stream);
    for (FrameStream& stream : peer.bulk) part(stream);
  }
}

}  // namespace

TcpFabric::TcpFabric(TcpFabricOptions options)
    : options_(std::move(options)),
      gate_({.address = options_.address, .secret = options_.secret, .security = options_.security}) {}

std::unique_ptr<WireChannel> TcpFabric::connect(const std::shared_ptr<TcpFabric>& fabric,
                                                const TcpMembers& members) {
  std::vector<TcpPeer> peers(members.members.size());
  try {
    fabric->connect(members, peers);
  } catch (const Error& error) {
    // In a part ranks have other numbers than in this error: there they ask the whole group.
    const FailureRecord record = record_of(error);
    if (members.names.size() == 0)
      leave(peers, FrameKind::failure, std::as_bytes(std::span(&record, 1)));
    else
      leave(peers, FrameKind::leave, {});
    throw;
  } catch (...) {
    leave(peers, FrameKind::leave, {});
    throw;
  }
  return std::make_unique<TcpChannel>(fabric, members.group, members.rank, members.members, std::move(peers));
}

// The connections that a later rank dialled; false when the deadline passed.
bool TcpFabric::take(int from, const TcpMembers& members, Deadline deadline, TcpPeer& to) {
  const auto watch = watch_for(from, members);
  for (int number = 0; number <= options_.streams; ++number) {
    auto stream = wait_watched(gate_, hello_of(members.group, from, members.rank, number), deadline, watch);
    if (stream == nullptr) return false;
    FrameStream& taken = (number == 0 ? to.side : to.bulk).emplace_back(std::move(stream));
    taken.post({.kind = FrameKind::join, .bytes = 0, .card = {}}, {});
  }
  return true;
}

void TcpFabric::connect(const TcpMembers& members, std::vector<TcpPeer>& peers) {
  const Deadline deadline = Deadline::after(members.timeout);
  const std::string& group = members.group;
  const int rank = members.rank;
  const int size = static_cast<int>(members.members.size());
  const int connections = options_.streams + 1;
  const auto add = [&](int peer, int number, std::unique_ptr<net::Stream> stream) {
    TcpPeer& to = peers[static_cast<std::size_t>(peer)];
    (number == 0 ? to.side : to.bulk).emplace_back(std::move(stream));
  };
  const RankNames names = members.names.size() == 0 ? RankNames(group, members.members) : members.names;
  const auto named = [&](int r) { return names.named(r); };
  const auto timeout = [&](const std::vector<int>& missing, const std::string& what) {
    Blamed blamed;
    for (int r : missing) {
      blamed.numbers.push_back(names.number(r));
      blamed.text += (blamed.text.empty() ? "" : "; ") + named(r);
    }
    if (members.blame) blamed = members.blame(missing);
    return TimeoutError(blamed.numbers, what + "; missing: " + blamed.text);
  };
  // One that does not answer must not keep this rank from the others: each has a while in turn.
  std::vector<std::pair<int, int>> pending;  // peer and connection
  for (int peer = 0; peer < rank; ++peer)
    for (int number = 0; number < connections; ++number) pending.emplace_back(peer, number);
  const auto turn = std::min<std::chrono::nanoseconds>(kLongestTurn, members.timeout / 3);
  while (!pending.empty()) {
    std::vector<std::pair<int, int>> later;
    for (const auto& [peer, number] : pending) {
      if (!later.empty() && later.back().first == peer) {
        later.emplace_back(peer, number);
        continue;
      }
      const auto watch = watch_for(peer, members);
      if (watch) watch();
      const bool last = deadline.left() <= turn;
      const Deadline until = last ? deadline : Deadline::after(turn);
      const auto member = static_cast<std::size_t>(members.members[static_cast<std::size_t>(peer)]);
      const std::string what =
          "group " + group + ": " + named(rank) + " cannot connect to " + named(peer) + ": ";
      try {
        add(peer, number,
            net::dial(endpoints_[member], options_.secret, options_.security,
                      hello_of(group, rank, peer, number), until, options_.address, watch));
      } catch (const TimeoutError& error) {
        if (!error.missing().empty()) throw;  // what was watched
        if (last) throw timeout({peer}, what + error.what());
        later.emplace_back(peer, number);
      } catch (const PeerError& error) {
        if (error.rank() >= 0) throw;
        if (!until.passed()) throw PeerError(names.number(peer), what + error.what());
        if (last) throw timeout({peer}, what + error.what());
        later.emplace_back(peer, number);
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
    const auto watch = watch_for(peer, members);
    try {
      if (!(peer > rank ? take(peer, members, deadline, to) : joined(to, deadline, watch)))
        missing.push_back(peer);
    } catch (const net::ConnectionLost& loss) {
      const Deadline patience = Deadline::after(kWaitForFirstReason);
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
