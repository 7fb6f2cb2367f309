// How the agents of a job find each other before any worker starts: node 0's listens at the endpoint, the
// others dial it, everybody proves to know the job's secret, says what it was started for, and is told what
// all have agreed on.
#pragma once

#include <memory>

#include "launch/job.h"
#include "launch/link.h"
#include "net/address.h"
#include "net/secret.h"

namespace lockstep::launcher {

struct Meeting {
  Job job = {};
  std::unique_ptr<Link> link = {};  // to the other agents
};

// Comes back when all agents are there; no thread and no listening socket is left then. Throws as launch()
// does.
Meeting meet(const LaunchOptions& options);

// What each side of it needs.
struct MeetingPlace {
  const LaunchOptions& options;
  net::Endpoint endpoint = {};
  net::Secret secret;  // the job's
};

// Node 0's side, in meeting_lead.cc. `address`: of this machine, to listen on.
Meeting gather(const MeetingPlace& place, const std::string& address);
// The other side.
Meeting join(const MeetingPlace& place);

// The secrets that are derived from the job's.
net::Secret agents_secret(const net::Secret& secret);
net::Secret workers_secret(const net::Secret& secret, const std::string& job);

}  // namespace lockstep::launcher
