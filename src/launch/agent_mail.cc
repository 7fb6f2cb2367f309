#include "launch/agent_mail.h"

#include <climits>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "net/stream.h"

namespace lockstep::launcher {
namespace {

using Json = nlohmann::json;

template <class Value>
void put(Json& json, const char* name, const std::optional<Value>& value) {
  if (value) json[name] = *value;
}

// Peers know the secret, but may be of another version, or broken: whatever they write, a number is one that
// the rest can count with.
int number_in(const Json& json, const char* name, int least, int most) {
  const Json& value = json.at(name);
  // A large unsigned number would come back negative.
  const bool whole =
      value.is_number_unsigned() ? value.get<std::uint64_t>() <= INT_MAX : value.is_number_integer();
  if (!whole || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most)
    throw net::ConnectionLost{std::string("sent a message whose '") + name + "' can't be"};
  return value.get<int>();
}

constexpr int kMostRanks = kMostNodes * kMostWorkers;
constexpr int kMostSignal = 64;
constexpr int kMostPort = 65535;
constexpr int kMostGraceMs = 1'000'000'000;

std::optional<int> optional_number(const Json& json, const char* name, int least, int most) {
  return json.contains(name) ? std::optional(number_in(json, name, least, most)) : std::nullopt;
}

double seconds(const Json& json) {
  const double value = json.at("seconds");
  if (!(value >= 0 && value < 1e12)) throw net::ConnectionLost{"sent a time that can't be"};
  return value;
}

Json json_of(const WorkerEnd& end) {
  return {{"rank", end.rank},           {"node", end.node},       {"pid", end.pid},
          {"exit_code", end.exit_code}, {"signal", end.signal},   {"core_dumped", end.core_dumped},
          {"stopped", end.stopped},     {"seconds", end.seconds}, {"blames", end.blames}};
}

std::vector<int> ranks_of(const Json& list) {
  std::vector<int> ranks;
  for (const Json& rank : list)
    ranks.push_back(number_in(Json{{"blames", rank}}, "blames", 0, kMostRanks - 1));
  return ranks;
}

WorkerEnd worker_end(const Json& json) {
  return {.rank = number_in(json, "rank", 0, kMostRanks - 1),
          .node = number_in(json, "node", 0, kMostNodes - 1),
          .pid = number_in(json, "pid", 0, INT_MAX),
          .exit_code = number_in(json, "exit_code", 0, 255),
          .signal = number_in(json, "signal", 0, kMostSignal),
          .core_dumped = json.at("core_dumped"),
          .stopped = json.at("stopped"),
          .seconds = seconds(json),
          .blames = ranks_of(json.at("blames"))};
}

Json json_of(const NodeEnd& end) {
  return {{"node", end.node},       {"host", end.host}, {"first_rank", end.first_rank},
          {"workers", end.workers}, {"lost", end.lost}, {"interrupted_by", end.interrupted_by}};
}

NodeEnd node_end(const Json& json) {
  return {.node = number_in(json, "node", 0, kMostNodes - 1),
          .host = json.at("host"),
          .first_rank = number_in(json, "first_rank", 0, kMostRanks - 1),
          .workers = number_in(json, "workers", 1, kMostWorkers),
          .lost = json.at("lost"),
          .interrupted_by = number_in(json, "interrupted_by", 0, kMostSignal)};
}

template <class Item>
Json list_of(const std::vector<Item>& items) {
  Json list = Json::array();
  for (const Item& item : items) list.push_back(json_of(item));
  return list;
}

template <class Item>
std::vector<Item> items_of(const Json& list, Item (*read)(const Json&)) {
  std::vector<Item> items;
  for (const Json& item : list) items.push_back(read(item));
  return items;
}

// All nodes of a job, each at its place and with the ranks that follow those before it.
std::vector<NodeEnd> nodes_of(const Json& list) {
  const std::vector<NodeEnd> nodes = items_of(list, node_end);
  std::vector<NodeEnd> counted = nodes;
  number_ranks(counted);
  bool good = !nodes.empty();
  for (std::size_t i = 0; i < nodes.size(); ++i)
    good = good && nodes[i].node == static_cast<int>(i) && nodes[i].first_rank == counted[i].first_rank;
  if (!good) throw net::ConnectionLost{"sent a list of nodes that can't be"};
  return nodes;
}

// The name is part of a folder's name and of the mark by which processes are found and killed.
std::string job_name(const Json& json) {
  const std::string name = json.at("job");
  if (name.size() != 32 || name.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw net::ConnectionLost{"sent a job's name that is none"};
  return name;
}

struct Writer {
  Json operator()(const Join& mail) const {
    Json json = {{"is", "join"},
                 {"nodes", mail.nodes},
                 {"workers", mail.workers},
                 {"host", mail.host},
                 {"grace_ms", mail.grace.count()}};
    put(json, "node", mail.node);
    return json;
  }
  Json operator()(const WorkerFailed& mail) const {
    return {{"is", "worker_failed"}, {"end", json_of(mail.end)}};
  }
  Json operator()(const Interrupted& mail) const { return {{"is", "interrupted"}, {"signal", mail.signal}}; }
  Json operator()(const Finished& mail) const {
    Json lines = Json::array();
    for (const auto& [rank, texts] : mail.end.last_lines) lines.push_back({{"rank", rank}, {"lines", texts}});
    return {{"is", "finished"}, {"workers", list_of(mail.end.workers)}, {"last_lines", lines}};
  }
  Json operator()(const Welcome& mail) const {
    const Job& job = mail.job;
    return {{"is", "welcome"},
            {"job", job.name},
            {"node", job.node},
            {"nodes", list_of(job.nodes)},
            {"master_addr", job.master_addr},
            {"master_port", job.master_port},
            {"max_restarts", job.max_restarts},
            {"threads", job.threads},
            {"grace_ms", job.grace.count()}};
  }
  Json operator()(const Refused& mail) const {
    return {{"is", "refused"}, {"why", mail.why}, {"usage", mail.usage}};
  }
  Json operator()(const Stop& mail) const { return {{"is", "stop"}, {"signal", mail.order.signal}}; }
  Json operator()(const Verdict& mail) const {
    Json json = {{"is", "verdict"},
                 {"nodes", list_of(mail.nodes)},
                 {"workers", list_of(mail.workers)},
                 {"last_lines", mail.last_lines},
                 {"next_master_port", mail.next_master_port}};
    put(json, "first_failed", mail.first_failed);
    put(json, "first_failed_node", mail.first_failed_node);
    return json;
  }
  Json operator()(const GivenUp& mail) const { return {{"is", "given_up"}, {"why", mail.why}}; }
  Json operator()(const Alive&) const { return {{"is", "alive"}}; }
  Json operator()(const Paused&) const { return {{"is", "paused"}}; }
};

std::chrono::milliseconds grace(const Json& json) {
  return std::chrono::milliseconds(number_in(json, "grace_ms", 0, kMostGraceMs));
}

Welcome welcome(const Json& json) {
  Welcome mail;
  Job& job = mail.job;
  job.name = job_name(json);
  job.nodes = nodes_of(json.at("nodes"));
  job.node = number_in(json, "node", 0, static_cast<int>(job.nodes.size()) - 1);
  job.master_addr = json.at("master_addr");
  job.master_port = number_in(json, "master_port", 1, kMostPort);
  job.max_restarts = number_in(json, "max_restarts", 0, INT_MAX);
  job.threads = json.at("threads");
  job.grace = grace(json);
  return mail;
}

Finished finished(const Json& json) {
  Finished mail{{.workers = items_of(json.at("workers"), worker_end)}};
  for (const Json& entry : json.at("last_lines"))
    mail.end.last_lines[number_in(entry, "rank", 0, kMostRanks - 1)] = entry.at("lines");
  return mail;
}

Verdict verdict(const Json& json) {
  return {.nodes = nodes_of(json.at("nodes")),
          .workers = items_of(json.at("workers"), worker_end),
          .first_failed = optional_number(json, "first_failed", 0, kMostRanks - 1),
          .first_failed_node = optional_number(json, "first_failed_node", 0, kMostNodes - 1),
          .last_lines = json.at("last_lines"),
          .next_master_port = number_in(json, "next_master_port", 0, kMostPort)};
}

AgentMail from_json(const Json& json) {
  const std::string is = json.at("is");
  if (is == "join")
    // Node 0 says what it thinks of these.
    return Join{.nodes = number_in(json, "nodes", INT_MIN, INT_MAX),
                .node = optional_number(json, "node", INT_MIN, INT_MAX),
                .workers = number_in(json, "workers", INT_MIN, INT_MAX),
                .host = json.at("host"),
                .grace = grace(json)};
  if (is == "worker_failed") return WorkerFailed{worker_end(json.at("end"))};
  if (is == "interrupted") return Interrupted{number_in(json, "signal", 1, kMostSignal)};
  if (is == "finished") return finished(json);
  if (is == "welcome") return welcome(json);
  if (is == "refused") return Refused{.why = json.at("why"), .usage = json.at("usage")};
  if (is == "stop") return Stop{{.signal = number_in(json, "signal", 0, kMostSignal)}};
  if (is == "verdict") return verdict(json);
  if (is == "given_up") return GivenUp{json.at("why")};
  if (is == "alive") return Alive{};
  if (is == "paused") return Paused{};
  throw net::ConnectionLost{"sent a message that this version does not know"};
}

}  // namespace

std::string write_mail(const AgentMail& mail) {
  // Workers may write anything; what is no UTF-8 is replaced.
  return std::visit(Writer(), mail).dump(-1, ' ', false, Json::error_handler_t::replace);
}

AgentMail read_mail(const std::string& text) {
  try {
    return from_json(try_json<Json>(text));
  } catch (const Json::exception&) {
    throw net::ConnectionLost{"sent what is no message of an agent"};
  }
}

}  // namespace lockstep::launcher
