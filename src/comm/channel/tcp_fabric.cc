#include "comm/channel/tcp_fabric.h"

#include "comm/channel/tcp_channel.h"
#include "net/secret.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kFirstSlice{400};
constexpr std::chrono::milliseconds kGlance{50};

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

// A dead peer's port answers no dial: who watches is asked in between.
std::unique_ptr<net::Stream> dial_watched(const net::Endpoint& to, const TcpFabricOptions& options,
                                          const std::string& hello, Deadline deadline,
                                          const std::function<void()>& watch) {
  for (std::chrono::nanoseconds slice = kFirstSlice;; slice *= 2) {
    const bool last = !watch || deadline.left() <= slice;
    const Deadline until = last ? deadline : Deadline::after(slice);
    if (watch) watch();
    try {
      return net::dial(to, options.secret, options.security, hello, until, options.address);
    } catch (const Error&) {
      if (last || !until.passed()) throw;
    }
  }
}

std::unique_ptr<net::Stream> wait_watched(net::Gate& gate, const std::string& hello, Deadline deadline,
                                          const std::function<void()>& watch) {
  if (!watch) return gate.wait_for(hello, deadline);
  for (;;) {
    watch();
    const Deadline until = Deadline::after(std::min<std::chrono::nanoseconds>(kGlance, deadline.left()));
    if (auto stream = gate.wait_for(hello, until)) return stream;
    if (deadline.passed()) return nullptr;
  }
}

}  // namespace

TcpFabric::TcpFabric(TcpFabricOptions options)
    : options_(std::move(options)),
      gate_({.address = options_.address, .secret = options_.secret, .security = options_.security}) {}

std::unique_ptr<WireChannel> TcpFabric::connect(const std::shared_ptr<TcpFabric>& fabric,
                                                const TcpMeeting& meeting) {
  const TcpFabricOptions& options = fabric->options_;
  const Deadline deadline = Deadline::after(meeting.timeout);
  const std::string& group = meeting.group;
  const int rank = meeting.rank;
  const int size = static_cast<int>(meeting.members.size());
  const int lanes = options.streams + 1;
  std::vector<TcpPeer> peers(meeting.members.size());
  const auto add = [&](int peer, int lane, std::unique_ptr<net::Stream> stream) {
    TcpPeer& to = peers[static_cast<std::size_t>(peer)];
    (lane == 0 ? to.side : to.bulk).emplace_back(std::move(stream));
  };
  const auto name_of = [&](int r) {
    return meeting.names.empty() ? r : meeting.names[static_cast<std::size_t>(r)];
  };
  const auto named = [&](int r) { return "rank " + std::to_string(name_of(r)); };
  for (int peer = 0; peer < rank; ++peer)
    for (int lane = 0; lane < lanes; ++lane) {
      const auto member = static_cast<std::size_t>(meeting.members[static_cast<std::size_t>(peer)]);
      const std::string what =
          "group " + group + ": " + named(rank) + " cannot connect to " + named(peer) + ": ";
      const std::string hello = hello_of(group, rank, peer, lane);
      try {
        add(peer, lane, dial_watched(fabric->endpoints_[member], options, hello, deadline, meeting.watch));
      } catch (const TimeoutError& error) {
        if (!error.missing().empty()) throw;  // what was watched
        throw TimeoutError({name_of(peer)}, what + error.what());
      } catch (const PeerError& error) {
        if (error.rank() >= 0) throw;
        throw PeerError(name_of(peer), what + error.what());
      }
    }
  std::vector<int> missing;
  for (int peer = rank + 1; peer < size; ++peer)
    for (int lane = 0; lane < lanes; ++lane) {
      auto stream = wait_watched(fabric->gate_, hello_of(group, peer, rank, lane), deadline, meeting.watch);
      if (stream == nullptr) {
        missing.push_back(peer);
        break;
      }
      add(peer, lane, std::move(stream));
    }
  if (!missing.empty()) {
    std::string names;
    std::vector<int> numbers;
    for (int r : missing) {
      names += (names.empty() ? "" : ", ") + named(r);
      numbers.push_back(name_of(r));
    }
    throw TimeoutError(numbers, "group " + group + ": no connection to " + named(rank) + " at " +
                                    fabric->endpoint().text() + " from " + names);
  }
  return std::make_unique<TcpChannel>(fabric, group, rank, meeting.members, std::move(peers));
}

}  // namespace lockstep
