#include "launch/gathering.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/host_name.h"
#include "launch/agent_line.h"
#include "launch/listening.h"
#include "launch/member_link.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "net/gate.h"

namespace lockstep::launcher {
namespace {

constexpr std::uint16_t kUsualPort = 29400;            // torchrun's
constexpr std::chrono::milliseconds kLeadsWord{5000};  // node 0 knows better than we who is missing

net::Secret job_secret(const Machines& machines) {
  try {
    if (!machines.secret_file.empty()) return net::Secret::read(machines.secret_file);
    if (const auto secret = net::Secret::from_environment()) return *secret;
  } catch (const SystemError& error) {
    throw UsageError(
        std::string(error.what()) +
        "; accepted: a file made once by `lockstep secret --out job.key` and copied to every machine");
  }
  throw UsageError("a job on " + std::to_string(machines.nodes) +
                   " machines needs a secret that all of them share; make one with `lockstep secret --out "
                   "job.key`, copy it to every machine, and give it with --secret-file job.key, "
                   "LOCKSTEP_SECRET_FILE or LOCKSTEP_SECRET");
}

net::Endpoint endpoint_of(const Machines& machines) {
  if (machines.endpoint.empty())
    throw UsageError("--nnodes " + std::to_string(machines.nodes) +
                     " needs --rdzv-endpoint HOST:PORT, the same on every machine: an address of node 0's "
                     "machine and a port that is free there, for example 10.0.0.1:29400");
  const net::Endpoint endpoint = net::Endpoint::parse("--rdzv-endpoint", machines.endpoint, kUsualPort);
  if (endpoint.port == 0)
    throw UsageError(
        "--rdzv-endpoint '" + machines.endpoint +
        "' has no port that the other machines could know; accepted: HOST:PORT, port 1 to 65535");
  return endpoint;
}

// A short try first, so that people hear why nothing happens.
std::unique_ptr<net::Stream> dial_node_0(const GatheringPlace& place, Deadline deadline) {
  const net::Security security = place.options.plaintext ? net::Security::plaintext : net::Security::tls;
  const net::Secret secret = agents_secret(place.secret);
  const auto dial = [&](Deadline until) {
    return net::dial(place.endpoint, secret, security, kAgentHello, until);
  };
  const std::string where = place.endpoint.text();
  try {
    if (place.options.on_notice && deadline.left() > kQuietly) {
      const Deadline quiet = Deadline::after(kQuietly);
      try {
        return dial(quiet);
      } catch (const Error&) {
        if (!quiet.passed()) throw;  // it was no want of time
        place.options.on_notice("no agent of node 0 answers at " + where + " yet; trying on");
      }
    }
    return dial(deadline);
  } catch (const TimeoutError&) {
    const std::string here = is_here(place.endpoint)
                                 ? "; that is this machine itself: is it node 0's address?"
                                 : "; is the agent of node 0 running there, and the port open?";
    throw TimeoutError({0}, "no agent of node 0 could be reached at " + where + " within " +
                                std::to_string(place.options.machines.patience.count() / 1000) + " s" + here);
  }
}

// The next message, whenever it comes before the deadline.
AgentMail wait_for_mail(AgentLine& line, Deadline deadline, const std::string& where) {
  try {
    for (;;) {
      if (auto mail = line.next()) return *std::move(mail);
      if (deadline.passed())
        throw TimeoutError(
            {}, "the agent of node 0 at " + where + " has this one, but not all of the others came in time");
      pollfd ready{.fd = line.fd(), .events = POLLIN, .revents = 0};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left()).count();
      ::poll(&ready, 1, static_cast<int>(std::min<long long>(left, 60'000)));
    }
  } catch (const net::ConnectionLost& lost) {
    throw PeerError(0,
                    "the agent of node 0 at " + where + " was lost before the job began: it " + lost.reason);
  }
}

// What was said here and counts only where node 0 is. One who says nothing of it means node 0's.
void mention_overruled(const LaunchOptions& options, const Job& job) {
  if (!options.on_notice) return;
  const int restarts = options.max_restarts;
  if (restarts != 0 && restarts != job.max_restarts)
    options.on_notice("--max-restarts " + std::to_string(restarts) + " has no effect here: node 0 says " +
                      std::to_string(job.max_restarts) + ", and that counts");
  const std::string threads = wanted_threads(options);
  if (!threads.empty() && threads != job.threads)
    options.on_notice(threads + " threads a worker (" +
                      (options.threads > 0 ? "--threads" : "OMP_NUM_THREADS") +
                      ") has no effect here: node 0 says " + job.threads +
                      ", and all workers of a job have the same number");
}

}  // namespace

net::Secret agents_secret(const net::Secret& secret) { return secret.derive("agents"); }

net::Secret workers_secret(const net::Secret& secret, const std::string& job) {
  return secret.derive("workers of " + job);
}

Gathered join(const GatheringPlace& place) {
  const std::string where = place.endpoint.text();
  const Machines& machines = place.options.machines;
  const Deadline deadline = Deadline::after(machines.patience);
  AgentLine line(dial_node_0(place, deadline));
  try {
    line.send(Join{.nodes = machines.nodes,
                   .node = machines.node,
                   .workers = place.options.workers,
                   .host = host_name(),
                   .grace = place.options.grace});
  } catch (const net::ConnectionLost& lost) {
    throw PeerError(0,
                    "the agent of node 0 at " + where + " was lost before the job began: it " + lost.reason);
  }
  AgentMail answer = wait_for_mail(line, Deadline::after(deadline.left() + kLeadsWord), where);
  if (const auto* const refused = std::get_if<Refused>(&answer)) {
    if (refused->usage) throw UsageError(refused->why);
    throw PeerError(0, "the agent of node 0 at " + where + " gave up: " + refused->why);
  }
  auto* const welcome = std::get_if<Welcome>(&answer);
  if (welcome == nullptr)
    throw PeerError(0, "the agent of node 0 at " + where + " does not speak this version's language");
  if (welcome->job.own().workers != place.options.workers)
    throw PeerError(0,
                    "the agent of node 0 at " + where + " sent a plan with another number of workers here");
  Gathered meeting{.job = std::move(welcome->job)};
  mention_overruled(place.options, meeting.job);
  meeting.job.worker_secret = workers_secret(place.secret, meeting.job.name).hex();
  meeting.link = std::make_unique<MemberLink>(meeting.job, std::move(line));
  return meeting;
}

Gathered meet(const LaunchOptions& options) {
  const Machines& machines = options.machines;
  const net::Endpoint endpoint = endpoint_of(machines);
  const GatheringPlace place{.options = options, .endpoint = endpoint, .secret = job_secret(machines)};
  if (machines.node) return *machines.node == 0 ? gather(place, listening_address(endpoint)) : join(place);
  if (!is_here(endpoint)) return join(place);
  // Of several agents without a number on this machine the first to listen is node 0's.
  try {
    return gather(place, listening_address(endpoint));
  } catch (const net::AddressInUse&) {
    return join(place);
  }
}

}  // namespace lockstep::launcher
