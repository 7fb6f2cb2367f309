// How the workers of a job on several machines find each other: each sends rank 0 a card, and gets
// everybody's.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "net/gate.h"

namespace lockstep::net {

struct RosterOptions {
  Endpoint endpoint;  // rank 0 listens there, the others dial it
  Secret secret;
  Security security = Security::tls;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};
  // Where there is one it is called again and again while this rank waits, with whom for: "rank 3".
  std::function<void(const std::string& whom)> waits = {};
};

// Every rank's card (at most 64 KiB), in rank order, the same on every rank. Throws UsageError when two
// workers have one rank or disagree about the size (naming them and where they are), TimeoutError naming the
// ranks that did not come, PeerError when rank 0 went.
std::vector<std::string> exchange_cards(const RosterOptions& options, const std::string& card);

}  // namespace lockstep::net
