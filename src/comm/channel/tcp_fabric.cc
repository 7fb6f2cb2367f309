#include "comm/channel/tcp_fabric.h"

#include "comm/channel/tcp_channel.h"
#include "net/secret.h"

namespace lockstep {
namespace {

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

}  // namespace

TcpFabric::TcpFabric(TcpFabricOptions options)
    : options_(std::move(options)),
      gate_({.address = options_.address, .secret = options_.secret, .security = options_.security}) {}

std::unique_ptr<WireChannel> TcpFabric::connect(const std::shared_ptr<TcpFabric>& fabric,
                                                const std::vector<int>& members, int rank,
                                                const std::string& group, std::chrono::milliseconds timeout) {
  const TcpFabricOptions& options = fabric->options_;
  const Deadline deadline = Deadline::after(timeout);
  const int size = static_cast<int>(members.size());
  const int lanes = options.streams + 1;
  std::vector<TcpPeer> peers(members.size());
  const auto add = [&](int peer, int lane, std::unique_ptr<net::Stream> stream) {
    TcpPeer& to = peers[static_cast<std::size_t>(peer)];
    (lane == 0 ? to.side : to.bulk).emplace_back(std::move(stream));
  };
  for (int peer = 0; peer < rank; ++peer)
    for (int lane = 0; lane < lanes; ++lane) {
      const net::Endpoint& to =
          fabric->endpoints_[static_cast<std::size_t>(members[static_cast<std::size_t>(peer)])];
      try {
        add(peer, lane,
            net::dial(to, options.secret, options.security, hello_of(group, rank, peer, lane), deadline,
                      options.address));
      } catch (const TimeoutError& error) {
        throw TimeoutError({peer}, "group " + group + ": rank " + std::to_string(rank) +
                                       " cannot connect to rank " + std::to_string(peer) + ": " +
                                       error.what());
      } catch (const PeerError& error) {
        throw PeerError(peer, "group " + group + ": rank " + std::to_string(rank) +
                                  " cannot connect to rank " + std::to_string(peer) + ": " + error.what());
      }
    }
  std::vector<int> missing;
  for (int peer = rank + 1; peer < size; ++peer)
    for (int lane = 0; lane < lanes; ++lane) {
      auto stream = fabric->gate_.wait_for(hello_of(group, peer, rank, lane), deadline);
      if (stream == nullptr) {
        missing.push_back(peer);
        break;
      }
      add(peer, lane, std::move(stream));
    }
  if (!missing.empty()) {
    std::string names;
    for (int r : missing) names += (names.empty() ? "rank " : ", rank ") + std::to_string(r);
    throw TimeoutError(missing, "group " + group + ": no connection to rank " + std::to_string(rank) +
                                    " at " + fabric->endpoint().text() + " from " + names);
  }
  return std::make_unique<TcpChannel>(fabric, group, rank, members, std::move(peers));
}

}  // namespace lockstep
