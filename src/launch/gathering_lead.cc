// Node 0's side of the meeting.
#include <poll.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <utility>

#include "base/host_name.h"
#include "launch/agent_line.h"
#include "launch/gathering.h"
#include "launch/lead_link.h"
#include "launch/worker_environment.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "net/gate.h"

namespace lockstep::launcher {
namespace {

constexpr std::chrono::milliseconds kStep{1000};  // the longest sleep

// Who was turned away at the gate, for people: whatever strangers do, a line every few seconds at most.
class TurnedAway {
 public:
  // From the gate's thread.
  void note(const std::string& peer, const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (line_.empty())
      line_ = peer + " was turned away: it " + why;
    else
      ++more_;
  }
  // The next line; empty when there is none, or not yet.
  std::string take() {
    const std::lock_guard lock(mutex_);
    if (line_.empty() || Clock::now() < next_) return "";
    next_ = Clock::now() + std::chrono::seconds(5);
    std::string line = std::exchange(line_, "");
    if (const int more = std::exchange(more_, 0); more > 0)
      line += " (and " + std::to_string(more) + " more)";
    return line;
  }

 private:
  std::mutex mutex_;
  std::string line_;
  int more_ = 0;
  Clock::time_point next_{};
};

// Takes agents until all are there. Whoever has the secret but was started wrongly is told so and refused;
// the others go on waiting.
class Gathering {
 public:
  Gathering(const GatheringPlace& place, const std::string& address)
      : options_(place.options),
        where_(place.endpoint.text()),
        gate_({.address = address,
               .port = place.endpoint.port,
               .secret = agents_secret(place.secret),
               .security = options_.plaintext ? net::Security::plaintext : net::Security::tls,
               .on_refused = [this](const std::string& peer, const std::string& why) {
                 turned_away_.note(peer, why);
               }}) {}

  // The agents of nodes 1 and up, in order; throws TimeoutError.
  struct Agent {
    AgentLine line;
    std::optional<Join> says = {};  // once it has said it
    int node = -1;                  // once it is known
  };
  std::vector<Agent> wait() {
    const Deadline deadline = Deadline::after(options_.machines.patience);
    const Deadline quiet = Deadline::after(kQuietly);
    bool noticed = false;
    while (!complete()) {
      if (deadline.passed()) give_up();
      if (!noticed && quiet.passed()) {
        notice("waiting at " + where_ + " for " + missing());
        noticed = true;
      }
      sleep(deadline);
      if (const std::string line = turned_away_.take(); !line.empty()) notice(line);
      while (auto arrival = next_arrival()) agents_.push_back({.line = AgentLine(std::move(arrival))});
      for (auto agent = agents_.begin(); agent != agents_.end();)
        agent = listen(*agent) ? std::next(agent) : agents_.erase(agent);
    }
    if (const std::string line = turned_away_.take(); !line.empty()) notice(line);
    turn_away_late();
    return numbered();
  }

 private:
  int nodes() const { return options_.machines.nodes; }

  void notice(const std::string& text) const {
    if (options_.on_notice) options_.on_notice(text);
  }

  bool complete() const {
    const auto here = std::count_if(agents_.begin(), agents_.end(),
                                    [](const Agent& agent) { return agent.says.has_value(); });
    return here + 1 == nodes();
  }

  std::string all_here() const {
    return "all " + std::to_string(nodes()) + " agents of this job are there already";
  }

  bool has(int node) const {
    return node == 0 || std::any_of(agents_.begin(), agents_.end(), [node](const Agent& agent) {
             return agent.says && agent.says->node == node;
           });
  }

  // "2 more agents: nodes 1, 3 of 4"; agents without a number could be any of them.
  std::string missing() const {
    int unnumbered = 0;
    for (const Agent& agent : agents_) unnumbered += agent.says && !agent.says->node ? 1 : 0;
    std::string list;
    int count = 0;
    for (int node = 1; node < nodes(); ++node) {
      if (has(node)) continue;
      list += (count++ == 0 ? "" : ", ") + std::to_string(node);
    }
    if (unnumbered > 0)
      return std::to_string(count - unnumbered) + " more of " + std::to_string(nodes()) + " agents";
    return (count == 1 ? "node " : "nodes ") + list + " of " + std::to_string(nodes());
  }

  std::unique_ptr<net::Stream> next_arrival() {
    net::Gate::Arrival arrival = gate_.next(Deadline::after(std::chrono::nanoseconds(0)));
    while (arrival.stream && arrival.hello != kAgentHello)
      arrival = gate_.next(Deadline::after(std::chrono::nanoseconds(0)));
    return std::move(arrival.stream);
  }

  // Until somebody comes, says something or leaves.
  void sleep(Deadline deadline) const {
    std::vector<pollfd> waiting = {{.fd = gate_.ready_fd(), .events = POLLIN, .revents = 0}};
    for (const Agent& agent : agents_)
      waiting.push_back({.fd = agent.line.fd(), .events = POLLIN, .revents = 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
    ::poll(waiting.data(), waiting.size(), static_cast<int>(std::min(left, kStep).count()));
  }

  // Takes what the agent says; false when it is no longer one of ours.
  bool listen(Agent& agent) {
    try {
      while (const auto mail = agent.line.next()) {
        const auto* const says = std::get_if<Join>(&*mail);
        if (says == nullptr || agent.says) throw net::ConnectionLost{"spoke out of turn"};
        if (const std::string why = objection(*says); !why.empty()) {
          notice("refused the agent on " + says->host + " (" + agent.line.peer() + "): " + why);
          agent.line.send(Refused{.why = why, .usage = true});
          return false;
        }
        if (complete()) {  // another one came in the same moment
          agent.line.send(Refused{.why = all_here()});
          return false;
        }
        agent.says = *says;
      }
      return true;
    } catch (const net::ConnectionLost& lost) {
      if (agent.says)
        notice("the agent on " + agent.says->host + " (" + agent.line.peer() +
               ") was lost before the job began: it " + lost.reason + "; waiting for it again");
      return false;
    }
  }

  // Why such an agent can't take part; empty when it can.
  std::string objection(const Join& says) const {
    if (says.nodes != nodes())
      return "it says --nnodes " + std::to_string(says.nodes) + ", node 0 says --nnodes " +
             std::to_string(nodes()) + "; accepted: the same number on every machine";
    if (says.workers < 1 || says.workers > kMostWorkers)
      return "it wants " + std::to_string(says.workers) + " workers; accepted: 1 to " +
             std::to_string(kMostWorkers);
    if (!says.node) return "";
    if (*says.node < 0 || *says.node >= nodes())
      return "it says --node-rank " + std::to_string(*says.node) + "; accepted: 0 to " +
             std::to_string(nodes() - 1);
    if (has(*says.node)) {
      std::string holder = where_;
      for (const Agent& agent : agents_)
        if (agent.says && agent.says->node == says.node)
          holder = agent.says->host + " (" + agent.line.peer() + ")";
      return "--node-rank " + std::to_string(*says.node) + " is taken by the agent on " + holder +
             "; accepted: a different one on every machine";
    }
    return "";
  }

  [[noreturn]] void give_up() {
    const Machines& machines = options_.machines;
    std::string why = missing() + " did not come to " + where_ + " within " +
                      std::to_string(machines.patience.count() / 1000) + " s";
    if (machines.least_nodes > 0 && machines.least_nodes < machines.nodes)
      why += " (--nnodes " + std::to_string(machines.least_nodes) + ":" + std::to_string(machines.nodes) +
             " is accepted, but a job can't start with fewer than the larger number yet)";
    std::vector<int> absent;
    for (int node = 1; node < nodes(); ++node)
      if (!has(node)) absent.push_back(node);
    for (Agent& agent : agents_) {
      try {
        agent.line.send(Refused{.why = why});
      } catch (const net::ConnectionLost&) {
        // It is gone already.
      }
    }
    throw TimeoutError(absent, why);
  }

  // Who was let in but has not spoken yet.
  void turn_away_late() {
    for (Agent& agent : agents_) {
      if (agent.says) continue;
      try {
        agent.line.send(Refused{.why = all_here()});
      } catch (const net::ConnectionLost&) {
        // It is gone already.
      }
    }
  }

  // Those without a number get what is left, in the order in which they came.
  std::vector<Agent> numbered() {
    std::erase_if(agents_, [](const Agent& agent) { return !agent.says; });
    int next = 1;
    for (Agent& agent : agents_) agent.node = agent.says->node.value_or(-1);
    for (Agent& agent : agents_) {
      if (agent.node >= 0) continue;
      while (has(next)) ++next;
      agent.node = next++;
    }
    agents_.sort([](const Agent& a, const Agent& b) { return a.node < b.node; });
    std::vector<Agent> result;
    for (Agent& agent : agents_) result.push_back(std::move(agent));
    return result;
  }

  const LaunchOptions& options_;
  std::string where_;
  TurnedAway turned_away_;
  net::Gate gate_;
  std::list<Agent> agents_;
};

std::unique_ptr<Gathering> opened(const GatheringPlace& place, const std::string& address) {
  try {
    return std::make_unique<Gathering>(place, address);
  } catch (const net::AddressInUse& error) {
    throw net::AddressInUse(std::string(error.what()) +
                            "; is another agent of node 0 there already? accepted: a port that is free in "
                            "--rdzv-endpoint, and --node-rank 0 on one machine only");
  }
}

Job agreed(const GatheringPlace& place, const std::vector<Gathering::Agent>& agents, int master_port) {
  const LaunchOptions& options = place.options;
  Job job;
  job.name = random_name();
  job.nodes.push_back({.node = 0, .host = host_name(), .workers = options.workers});
  for (const auto& agent : agents)
    job.nodes.push_back({.node = agent.node, .host = agent.says->host, .workers = agent.says->workers});
  number_ranks(job.nodes);
  job.master_addr = options.master_addr.empty() ? place.endpoint.host : options.master_addr;
  job.master_port = master_port;
  job.max_restarts = options.max_restarts;
  job.grace = options.grace;
  for (const auto& agent : agents) job.grace = std::max(job.grace, agent.says->grace);
  job.threads = threads_of_job(options);
  job.worker_secret = workers_secret(place.secret, job.name).hex();
  return job;
}

}  // namespace

Gathered gather(const GatheringPlace& place, const std::string& address) {
  // The gate and its thread are gone before anybody is told to start.
  std::vector<Gathering::Agent> agents = opened(place, address)->wait();
  const int fixed_port = place.options.master_port;
  const auto next_port = [fixed_port, address] { return fixed_port != 0 ? fixed_port : free_port(address); };
  Job job = agreed(place, agents, next_port());
  std::vector<AgentLine> lines;
  for (auto& agent : agents) {
    try {
      Job theirs = job;
      theirs.node = agent.node;
      agent.line.send(Welcome{theirs});
    } catch (const net::ConnectionLost&) {
      // The link finds it lost, and tells the others.
    }
    lines.push_back(std::move(agent.line));
  }
  auto link = std::make_unique<LeadLink>(job, std::move(lines), next_port);
  return {.job = std::move(job), .link = std::move(link)};
}

}  // namespace lockstep::launcher
