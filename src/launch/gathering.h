// How the agents of a job find each other before any worker starts: node 0's listens at the endpoint, the
// others dial it, everybody proves to know the job's secret, says what it was started for, and is told what
// all have agreed on.
#pragma once

#include <chrono>
#include <memory>

#include "launch/agent_link.h"
#include "launch/job.h"
#include "net/address.h"
#include "net/secret.h"

namespace lockstep::launcher {

struct Gathered {
  Job job = {};
  std::unique_ptr<AgentLink> link = {};  // to the other agents
};

// Comes back when all agents are there; no thread and no listening socket is left then. Throws as launch()
// does.
Gathered meet(const LaunchOptions& options);

constexpr std::chrono::milliseconds kQuietly{3000};  // before anybody is told that we wait

// What each side of it needs.
struct GatheringPlace {
  const LaunchOptions& options;
  net::Endpoint endpoint = {};
  net::Secret secret;  // the job's
};

// Node 0's side, in gathering_lead.cc. `address`: of this machine, to listen on.
Gathered gather(const GatheringPlace& place, const std::string& address);
// The other side.
Gathered join(const GatheringPlace& place);

// The secrets that are derived from the job's.
net::Secret agents_secret(const net::Secret& secret);
net::Secret workers_secret(const net::Secret& secret, const std::string& job);

}  // namespace lockstep::launcher
