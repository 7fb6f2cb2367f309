#include "launch/agent_mail.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "net/stream.h"

namespace lockstep::launcher {
namespace {

using Json = nlohmann::json;

template <class Value>
void put(Json& json, const char* name, const std::optional<Value>& value) {
  if (value) json[name] = *value;
}

std::optional<int> optional_number(const Json& json, const char* name) {
  return json.contains(name) ? std::optional(json.at(name).get<int>()) : std::nullopt;
}

Json json_of(const WorkerEnd& end) {
  return {{"rank", end.rank},           {"node", end.node},      {"pid", end.pid},
          {"exit_code", end.exit_code}, {"signal", end.signal},  {"core_dumped", end.core_dumped},
          {"stopped", end.stopped},     {"seconds", end.seconds}};
}

WorkerEnd worker_end(const Json& json) {
  return {.rank = json.at("rank"),
          .node = json.at("node"),
          .pid = json.at("pid"),
          .exit_code = json.at("exit_code"),
          .signal = json.at("signal"),
          .core_dumped = json.at("core_dumped"),
          .stopped = json.at("stopped"),
          .seconds = json.at("seconds")};
}

Json json_of(const NodeEnd& end) {
  return {{"node", end.node},       {"host", end.host}, {"first_rank", end.first_rank},
          {"workers", end.workers}, {"lost", end.lost}, {"interrupted_by", end.interrupted_by}};
}

NodeEnd node_end(const Json& json) {
  return {.node = json.at("node"),
          .host = json.at("host"),
          .first_rank = json.at("first_rank"),
          .workers = json.at("workers"),
          .lost = json.at("lost"),
          .interrupted_by = json.at("interrupted_by")};
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

// Whatever a peer writes, a time that can be added to others.
std::chrono::milliseconds grace(const Json& json) {
  return std::chrono::milliseconds(
      std::clamp<long long>(json.at("grace_ms").get<long long>(), 0, 1'000'000'000));
}

Welcome welcome(const Json& json) {
  Welcome mail;
  Job& job = mail.job;
  job.name = json.at("job");
  job.node = json.at("node");
  job.nodes = items_of(json.at("nodes"), node_end);
  job.master_addr = json.at("master_addr");
  job.master_port = json.at("master_port");
  job.max_restarts = json.at("max_restarts");
  job.threads = json.at("threads");
  job.grace = grace(json);
  if (job.node < 0 || static_cast<std::size_t>(job.node) >= job.nodes.size())
    throw net::ConnectionLost{"sent a plan without this node"};
  return mail;
}

Finished finished(const Json& json) {
  Finished mail{{.workers = items_of(json.at("workers"), worker_end)}};
  for (const Json& entry : json.at("last_lines"))
    mail.end.last_lines[entry.at("rank").get<int>()] = entry.at("lines");
  return mail;
}

Verdict verdict(const Json& json) {
  return {.nodes = items_of(json.at("nodes"), node_end),
          .workers = items_of(json.at("workers"), worker_end),
          .first_failed = optional_number(json, "first_failed"),
          .first_failed_node = optional_number(json, "first_failed_node"),
          .last_lines = json.at("last_lines"),
          .next_master_port = json.at("next_master_port")};
}

AgentMail from_json(const Json& json) {
  const std::string is = json.at("is");
  if (is == "join")
    return Join{.nodes = json.at("nodes"),
                .node = optional_number(json, "node"),
                .workers = json.at("workers"),
                .host = json.at("host"),
                .grace = grace(json)};
  if (is == "worker_failed") return WorkerFailed{worker_end(json.at("end"))};
  if (is == "interrupted") return Interrupted{json.at("signal")};
  if (is == "finished") return finished(json);
  if (is == "welcome") return welcome(json);
  if (is == "refused") return Refused{.why = json.at("why"), .usage = json.at("usage")};
  if (is == "stop") return Stop{{.signal = json.at("signal")}};
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
    return from_json(Json::parse(text));
  } catch (const Json::exception&) {
    throw net::ConnectionLost{"sent what is no message of an agent"};
  }
}

}  // namespace lockstep::launcher
