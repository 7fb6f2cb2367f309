// The launcher's report as text and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/launch/launcher.h"

namespace lockstep {
namespace {

constexpr std::size_t kShownLines = 10;

// "SIGSEGV"
std::string signal_name(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

// "was killed by SIGSEGV (Segmentation fault, core dumped)", "exited with status 3"
std::string how(const WorkerEnd& end) {
  if (end.signal == 0) return "exited with status " + std::to_string(end.exit_code);
  const char* const text = ::sigdescr_np(end.signal);
  return "was killed by " + signal_name(end.signal) + " (" + (text != nullptr ? text : "unknown signal") +
         (end.core_dumped ? ", core dumped)" : ")");
}

// "rank 1", "ranks 0, 2"
std::string ranks(const std::vector<int>& list) {
  std::string text = list.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < list.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(list[i]);
  return text;
}

bool several(const LaunchReport& report) { return report.nodes.size() > 1; }

// "node 1 (HOST)"
std::string node_name(const LaunchReport& report, int node) {
  const std::string name = "node " + std::to_string(node);
  for (const NodeEnd& end : report.nodes)
    if (end.node == node) return name + " (" + end.host + ")";
  return name;
}

// "rank 5", with its node where there are several
std::string worker_name(const LaunchReport& report, const WorkerEnd& end) {
  const std::string name = "rank " + std::to_string(end.rank);
  if (!several(report)) return name;
  for (const NodeEnd& node : report.nodes)
    if (node.node == end.node) return name + " (node " + std::to_string(end.node) + ", " + node.host + ")";
  return name;
}

std::size_t workers_of(const LaunchReport& report) {
  std::size_t count = 0;
  for (const NodeEnd& node : report.nodes) count += static_cast<std::size_t>(node.workers);
  return std::max(count, report.workers.size());
}

const WorkerEnd* end_of(const LaunchReport& report, int rank) {
  for (const WorkerEnd& end : report.workers)
    if (end.rank == rank) return &end;
  return nullptr;
}

// What became of the others: "ranks 0, 1 exited with status 1; rank 3 was stopped".
std::string others(const LaunchReport& report) {
  std::map<std::string, std::vector<int>> kinds;
  for (const WorkerEnd& end : report.workers) {
    if (report.first_failed == end.rank) continue;
    const bool stopped = end.stopped && end.failed();
    kinds[stopped ? "stopped by the launcher" : end.failed() ? how(end) : "ended well"].push_back(end.rank);
  }
  for (const NodeEnd& node : report.nodes)
    for (int rank = node.first_rank; rank < node.first_rank + node.workers; ++rank)
      if (end_of(report, rank) == nullptr && report.first_failed != rank)
        kinds["not heard of"].push_back(rank);
  std::string text;
  for (const auto& [kind, list] : kinds) text += (text.empty() ? "" : "; ") + ranks(list) + " " + kind;
  return text;
}

void add_lines(std::string& text, const std::vector<std::string>& lines, std::size_t most) {
  const std::size_t skip = lines.size() > most ? lines.size() - most : 0;
  for (std::size_t i = skip; i < lines.size(); ++i) text += "    | " + lines[i] + "\n";
}

void add_dumps(std::string& text, const LaunchReport& report) {
  if (report.dump_dir.empty()) return;
  text += fmt::format(
      "  flight recorder: {} in {}\n",
      report.dumps.size() == 1 ? report.dumps.front() : fmt::format("{} dumps", report.dumps.size()),
      report.dump_dir);
  add_lines(text, report.dump_summary, kShownLines);
}

// "rank 1 failed first: it exited with status 3, 0.2 s after the start (pid 77, ./train)", and its last
// lines.
void add_first_worker(std::string& text, const LaunchReport& report, const WorkerEnd& first) {
  text += fmt::format("{} failed{} {}, {:.1f} s after the start (pid {}, {})\n", worker_name(report, first),
                      workers_of(report) > 1 ? " first: it" : ": it", how(first), first.seconds, first.pid,
                      report.program);
  if (first.signal == SIGKILL)
    text += several(report) && first.node != report.node
                ? "  the agent there did not send that SIGKILL; out of memory? `dmesg` there would say so\n"
                : "  nobody here sent that SIGKILL; out of memory? `dmesg` would say so\n";
  if (!report.last_lines.empty()) {
    text += "  its last lines:\n";
    add_lines(text, report.last_lines, kShownLines);
  }
}

// Its agent may hang, or its machine be cut off; of one that was killed the guardian ends the workers.
bool may_still_run(const NodeEnd& node) {
  return node.lost.starts_with("does not answer") || node.lost.starts_with("did not end");
}

// "node 1 (HOST) failed first: its agent closed the connection, 2.0 s after the start".
void add_first_node(std::string& text, const LaunchReport& report) {
  const int number = *report.first_failed_node;
  for (const NodeEnd& node : report.nodes) {
    if (node.node != number) continue;
    if (node.interrupted_by != 0)
      text += fmt::format("{} was told to stop by {}, {:.1f} s after the start\n", node_name(report, number),
                          signal_name(node.interrupted_by), report.seconds);
    else
      text += fmt::format("{} failed first: its agent {}, {:.1f} s after the start{}\n",
                          node_name(report, number), node.lost, report.seconds,
                          may_still_run(node) ? "; its workers may still run" : "");
  }
}

// "all 4 workers on 2 machines are ended", as far as that is known.
std::string who_ended(const LaunchReport& report) {
  const std::size_t workers = workers_of(report);
  if (report.workers.size() == workers)
    return workers == 1
               ? std::string("its worker is ended")
               : fmt::format("all {} workers{} are ended", workers,
                             several(report) ? fmt::format(" on {} machines", report.nodes.size()) : "");
  std::string text = fmt::format("{} of {} workers are ended", report.workers.size(), workers);
  for (const NodeEnd& node : report.nodes) {
    if (std::any_of(report.workers.begin(), report.workers.end(),
                    [&node](const WorkerEnd& end) { return end.node == node.node; }))
      continue;
    text += fmt::format("; {} {}, its workers may still run", node_name(report, node.node),
                        node.lost.empty() ? "has not said so" : node.lost);
  }
  return text;
}

// Who told them to stop has to know that they did not get so far.
std::string who_was_killed(const LaunchReport& report) {
  if (report.killed_workers == 0) return "";
  const char* const here = several(report) ? " here" : "";
  const std::string who = report.killed_workers == 1
                              ? fmt::format("a worker{} was", here)
                              : fmt::format("{} workers{} were", report.killed_workers, here);
  return report.killed_by_signal
             ? fmt::format("; {} killed by the second signal: what was not saved is lost", who)
             : fmt::format(
                   "; {} killed, because {:g} s were over: what was not saved is lost, and a larger --grace "
                   "gives more time",
                   who, report.grace_s);
}

}  // namespace

std::string describe(const LaunchReport& report) {
  const bool failed = report.first_failed || report.first_failed_node;
  std::string text;
  if (!report.output_lost.empty()) {
    text = fmt::format("standard output can't be written, and what the workers wrote is lost: {}; {}\n",
                       report.output_lost, who_ended(report));
    if (!failed || report.interrupted_by != 0) return text;
  }
  if (report.interrupted_by != 0) {
    text +=
        fmt::format("stopped by {} after {:.1f} s{}; {}{}\n", signal_name(report.interrupted_by),
                    report.seconds, report.restarts > 0 ? fmt::format(" of restart {}", report.restarts) : "",
                    who_ended(report), who_was_killed(report));
    add_dumps(text, report);
    return text;
  }
  if (report.ok()) return "";
  if (report.first_failed_node)
    add_first_node(text, report);
  else if (const WorkerEnd* const first = end_of(report, *report.first_failed))
    add_first_worker(text, report, *first);
  else
    text += fmt::format("rank {} failed first; its node was lost before it could say how\n",
                        *report.first_failed);
  if (const std::string rest = others(report); !rest.empty()) text += "  the others: " + rest + "\n";
  for (const NodeEnd& node : report.nodes)
    if (!node.lost.empty() && report.first_failed_node != node.node)
      text += fmt::format("  {} was lost too: its agent {}{}\n", node_name(report, node.node), node.lost,
                          may_still_run(node) ? "; its workers may still run" : "");
  add_dumps(text, report);
  if (!report.log_dir.empty()) text += "  logs: " + report.log_dir + "\n";
  return text;
}

std::string to_json(const LaunchReport& report) {
  nlohmann::ordered_json json;
  json["ok"] = report.ok();
  json["exit_status"] = report.exit_status();
  json["job"] = report.job;
  json["program"] = report.program;
  json["workers"] = workers_of(report);
  json["seconds"] = report.seconds;
  json["restarts"] = report.restarts;
  json["interrupted_by"] = report.interrupted_by != 0
                               ? nlohmann::ordered_json(signal_name(report.interrupted_by))
                               : nlohmann::ordered_json();
  json["killed_workers"] = report.killed_workers;
  json["output_lost"] = report.output_lost;
  json["node"] = report.node;
  json["first_failed_node"] =
      report.first_failed_node ? nlohmann::ordered_json(*report.first_failed_node) : nlohmann::ordered_json();
  json["first_failed"] =
      report.first_failed ? nlohmann::ordered_json(*report.first_failed) : nlohmann::ordered_json();
  json["last_lines"] = report.last_lines;
  json["log_dir"] = report.log_dir;
  json["dump_dir"] = report.dump_dir;
  json["dumps"] = report.dumps;
  json["dump_summary"] = report.dump_summary;
  json["nodes"] = nlohmann::ordered_json::array();
  for (const NodeEnd& node : report.nodes) {
    json["nodes"].push_back(
        {{"node", node.node},
         {"host", node.host},
         {"first_rank", node.first_rank},
         {"workers", node.workers},
         {"lost", node.lost.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(node.lost)},
         {"interrupted_by",
          node.interrupted_by != 0 ? nlohmann::ordered_json(signal_name(node.interrupted_by)) : nullptr}});
  }
  json["ends"] = nlohmann::ordered_json::array();
  for (const WorkerEnd& end : report.workers) {
    json["ends"].push_back(
        {{"rank", end.rank},
         {"node", end.node},
         {"pid", end.pid},
         {"exit_code", end.signal == 0 ? nlohmann::ordered_json(end.exit_code) : nullptr},
         {"signal", end.signal != 0 ? nlohmann::ordered_json(signal_name(end.signal)) : nullptr},
         {"core_dumped", end.core_dumped},
         {"stopped", end.stopped},
         {"seconds", end.seconds},
         {"blames", end.blames}});
  }
  // Workers may write anything; what is no UTF-8 is replaced.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace lockstep
