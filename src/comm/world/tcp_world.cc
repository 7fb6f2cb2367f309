#include "comm/world/tcp_world.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "base/environment.h"
#include "base/json_text.h"
#include "comm/call/stall.h"
#include "comm/channel/tcp_fabric.h"
#include "comm/world/local_world.h"
#include "lockstep/base/identity.h"
#include "lockstep/base/log.h"
#include "lockstep/base/slurm.h"
#include "net/address.h"
#include "net/roster.h"

namespace lockstep {
namespace {

// What tells the machines of a job apart: the running kernel, and the network and process namespaces, which
// shared memory does not cross. A launcher that speaks of nodes has its say too.
std::string machine_key() {
  std::string key;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::getline(boot, key);
  for (const char* ns : {"/proc/self/ns/net", "/proc/self/ns/pid"}) {
    std::array<char, 64> link{};
    if (::readlink(ns, link.data(), link.size() - 1) > 0) key += std::string(" ") + link.data();
  }
  return key;
}

std::string node_key(const Membership& who, const Knobs& knobs) {
  std::string key = machine_key();
  if (const auto node = read_variable("GROUP_RANK")) key += " node " + *node;
  if (knobs.node_size > 0) key += " part " + std::to_string(who.rank / knobs.node_size);
  return key;
}

net::Secret secret_of(const Membership& who) {
  const auto secret = net::Secret::from_environment();
  if (!secret)
    throw UsageError(
        "workers that talk over TCP need the job's secret and there is none; start them with lockstep run, "
        "or make one "
        "with `lockstep secret --out job.key` and set LOCKSTEP_SECRET_FILE to it on every machine");
  return secret->derive("job " + who.label());
}

// `given` in a plan, or what the launcher says.
net::Endpoint endpoint_of(const std::string& launcher, const std::string& given = {}) {
  if (!given.empty()) {
    net::Endpoint endpoint = net::Endpoint::parse("GroupPlan::endpoint", given, 0);
    if (endpoint.port == 0)
      throw UsageError(
          "GroupPlan::endpoint '" + given +
          "' has no port; accepted: host:port, an address of rank 0's machine and a free port there");
    return endpoint;
  }
  const auto host = read_variable("MASTER_ADDR"), port = read_variable("MASTER_PORT");
  if (host && port) return net::Endpoint::parse("MASTER_ADDR and MASTER_PORT", *host + ":" + *port, 0);
  if (launcher == "SLURM")
    return net::Endpoint::parse("SLURM_STEP_NODELIST", slurm::endpoint(read_variable), 0);
  throw UsageError("where rank 0 listens is not known (" + launcher +
                   "): set MASTER_ADDR and MASTER_PORT to an address of its machine and a free port there");
}

net::Security security_of(const Knobs& knobs, bool one_machine) {
  if (knobs.tls == "auto") return one_machine ? net::Security::plaintext : net::Security::tls;
  return knobs.tls == "on" ? net::Security::tls : net::Security::plaintext;
}

std::chrono::nanoseconds spin_of(const Knobs& knobs, int ranks_here) {
  const bool crowded = ranks_here > cores_here();
  return knobs.spin.value_or(std::chrono::microseconds(crowded ? 0 : 50));
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Selector selector_for_wires(const Knobs& knobs) {
  Selector selector(knobs.algorithm);
  Costs costs;
  costs.message_s = 20e-6;
  costs.send = Curve({{65536, 2.5e-10}, {1e9, 5e-10}});
  selector.set_costs(costs);
  return selector;
}

// Text from peers that know the secret; still checked, so that a bug there is a message here.
struct Card {
  net::Endpoint endpoint;
  std::string node;
  std::string machine;
};

std::string write(const Card& card) {
  return nlohmann::json{{"host", card.endpoint.host},
                        {"port", card.endpoint.port},
                        {"node", card.node},
                        {"machine", card.machine}}
      .dump();
}

Card read(const std::string& text, int rank) try {
  const auto json = try_json<nlohmann::json>(text);
  return {{json.at("host").get<std::string>(), json.at("port").get<std::uint16_t>()},
          json.at("node").get<std::string>(),
          json.at("machine").get<std::string>()};
} catch (const nlohmann::json::exception&) {
  throw SystemError("rank " + std::to_string(rank) +
                    " sent a card that is none; is it another version of Lockstep?");
}

struct Roster {
  std::vector<net::Endpoint> endpoints;
  std::vector<int> nodes;
  std::vector<std::string> machines;
};

Roster read_all(const std::vector<std::string>& cards) {
  Roster roster;
  std::map<std::string, int> index;
  for (std::size_t r = 0; r < cards.size(); ++r) {
    Card card = read(cards[r], static_cast<int>(r));
    roster.endpoints.push_back(std::move(card.endpoint));
    roster.machines.push_back(std::move(card.machine));
    roster.nodes.push_back(index.try_emplace(card.node, static_cast<int>(index.size())).first->second);
  }
  return roster;
}

void refuse_loopback(const Roster& roster, int rank) {
  for (std::size_t r = 0; r < roster.nodes.size(); ++r)
    if (roster.machines[r] != roster.machines[static_cast<std::size_t>(rank)] &&
        net::is_loopback(roster.endpoints[r].host))
      throw UsageError("rank " + std::to_string(r) +
                       " is on another machine but listens on its loopback address " +
                       roster.endpoints[r].host +
                       "; set MASTER_ADDR (--rdzv-endpoint) to an address that all machines reach, or "
                       "LOCKSTEP_SOCKET_IFNAME to an interface of the network");
}

std::unique_ptr<ChannelEngine> wire_engine(const std::shared_ptr<TcpFabric>& fabric, Roster roster, int rank,
                                           const Knobs& knobs, const std::string& group = "world") {
  const int size = static_cast<int>(roster.nodes.size());
  fabric->set_endpoints(std::move(roster.endpoints));
  auto channel = TcpFabric::connect(
      fabric, {.group = group, .timeout = knobs.init_timeout, .rank = rank, .members = all_ranks(size)});
  auto engine = std::make_unique<ChannelEngine>("tcp", std::move(channel), group, std::move(roster.nodes),
                                                selector_for_wires(knobs));
  return engine;
}

std::unique_ptr<ChannelEngine> measured(std::unique_ptr<ChannelEngine> engine, const Knobs& knobs) {
  if (knobs.cache_dir != "off") engine->measure_links(std::max(knobs.init_timeout, kLeastToMeasure));
  return engine;
}

}  // namespace

std::unique_ptr<ChannelEngine> tcp_world(const Membership& who, const Knobs& knobs) {
  const net::Secret secret = secret_of(who);
  const net::Endpoint meeting = endpoint_of(who.launcher, who.endpoint);
  const net::Security security = security_of(knobs, who.one_machine);
  auto fabric = std::make_shared<TcpFabric>(TcpFabricOptions{.address = net::own_address(meeting),
                                                             .secret = secret,
                                                             .security = security,
                                                             .streams = knobs.tcp_streams,
                                                             .spin = spin_of(knobs, who.ranks_here)});
  Stall stall(knobs.warn_after);
  const auto cards =
      net::exchange_cards({.endpoint = meeting,
                           .secret = secret,
                           .security = security,
                           .rank = who.rank,
                           .size = who.size,
                           .timeout = knobs.init_timeout,
                           .waits =
                               [&, since = now_ns()](const std::string& whom) {
                                 if (stall.due(since))
                                   stall.say({"rank " + std::to_string(who.rank), whom, who.call()});
                               }},
                          write({fabric->endpoint(), node_key(who, knobs), machine_key()}));
  Roster roster = read_all(cards);
  refuse_loopback(roster, who.rank);
  log().info("rank {} listens on {}, {}", who.rank, fabric->endpoint().text(),
             security == net::Security::tls ? "TLS 1.3" : "plaintext");
  return measured(wire_engine(fabric, std::move(roster), who.rank, knobs, who.group), knobs);
}

std::unique_ptr<ChannelEngine> tcp_beside(const Group& world, net::Security security) {
  const Knobs knobs = Knobs::from_environment();
  const Identity who = Identity::from_environment();
  // Rank 0 makes the secret and the group carries it: whoever is in the group may know it.
  std::string hex = world.rank() == 0 ? net::Secret::make().hex() : std::string();
  world.broadcast(hex, 0);
  const bool several =
      *std::max_element(world.nodes().begin(), world.nodes().end()) > 0 && knobs.node_size == 0;
  auto fabric = std::make_shared<TcpFabric>(
      TcpFabricOptions{.address = several ? net::own_address(endpoint_of(who.launcher)) : "127.0.0.1",
                       .secret = net::Secret::parse(hex),
                       .security = security,
                       .streams = knobs.tcp_streams,
                       .spin = spin_of(knobs, who.local_size)});
  const std::vector<std::string> cards = world.all_gather(
      write({fabric->endpoint(), std::to_string(world.nodes()[static_cast<std::size_t>(world.rank())]), ""}));
  return measured(wire_engine(fabric, read_all(cards), world.rank(), knobs), knobs);
}

std::vector<std::unique_ptr<ChannelEngine>> tcp_threads(std::vector<int> nodes, net::Security security,
                                                        std::chrono::milliseconds timeout) {
  Knobs knobs = Knobs::from_environment();
  knobs.init_timeout = timeout;
  const int size = static_cast<int>(nodes.size());
  const net::Secret secret = net::Secret::make();
  std::vector<std::shared_ptr<TcpFabric>> fabrics;
  Roster roster{.endpoints = {}, .nodes = std::move(nodes), .machines = {}};
  for (int r = 0; r < size; ++r) {
    fabrics.push_back(std::make_shared<TcpFabric>(TcpFabricOptions{.address = "127.0.0.1",
                                                                   .secret = secret,
                                                                   .security = security,
                                                                   .streams = knobs.tcp_streams,
                                                                   .spin = spin_of(knobs, size)}));
    roster.endpoints.push_back(fabrics.back()->endpoint());
  }
  std::vector<std::unique_ptr<ChannelEngine>> engines(static_cast<std::size_t>(size));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < size; ++r)
      threads.emplace_back([&, r] {
        try {
          engines[static_cast<std::size_t>(r)] =
              wire_engine(fabrics[static_cast<std::size_t>(r)], roster, r, knobs);
        } catch (...) {
          errors[static_cast<std::size_t>(r)] = std::current_exception();
        }
      });
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return engines;
}

}  // namespace lockstep
