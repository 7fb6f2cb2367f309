// What one process needs for TCP channels: its gate, its peers' endpoints, and the secret. All channels of a
// job (the world's and its sub-groups') are connected through it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/agree/agreement.h"
#include "comm/channel/wire_channel.h"
#include "net/gate.h"

namespace lockstep {

struct TcpFabricOptions {
  std::string address;  // of this machine, numeric; only this one is bound
  net::Secret secret;
  net::Security security = net::Security::tls;
  int streams = 1;                        // bulk connections between two ranks
  std::chrono::nanoseconds spin{50'000};  // polling before sleeping
};

// The ranks of a channel to be.
struct TcpMembers {
  std::string group = {};
  std::chrono::milliseconds timeout = {};
  int rank = 0;                   // of this process
  std::vector<int> members = {};  // world rank of each
  // What each is called in messages, when this is a part of another group; none: as in a group of its own.
  RankNames names = {};
  // Asked again and again meanwhile, with the rank that is waited for; may throw. May be empty.
  std::function<void(int awaited)> watch = {};
  // Those to blame when these ranks don't come; empty: they themselves.
  std::function<Blamed(const std::vector<int>& missing)> blame = {};
};

struct TcpPeer;

class TcpFabric {
 public:
  explicit TcpFabric(TcpFabricOptions options);

  // Where this process listens: what its peers must know.
  net::Endpoint endpoint() const { return gate_.endpoint(); }
  // Everybody's, by world rank. Before the first connect.
  void set_endpoints(std::vector<net::Endpoint> endpoints) { endpoints_ = std::move(endpoints); }

  std::chrono::nanoseconds spin() const { return options_.spin; }
  net::Security security() const { return options_.security; }

  // Collective over the members: of two ranks the later dials the earlier. Throws TimeoutError naming who did
  // not come.
  static std::unique_ptr<WireChannel> connect(const std::shared_ptr<TcpFabric>& fabric,
                                              const TcpMembers& members);

 private:
  void connect(const TcpMembers& members, std::vector<TcpPeer>& peers);
  bool take(int from, const TcpMembers& members, Deadline deadline, TcpPeer& to);

  TcpFabricOptions options_;
  net::Gate gate_;
  std::vector<net::Endpoint> endpoints_;
};

}  // namespace lockstep
