// The launcher's report as text and as JSON.
#include <fmt/format.h>

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

// What became of the others: "ranks 0, 1 exited with status 1; rank 3 was stopped".
std::string others(const LaunchReport& report) {
  std::map<std::string, std::vector<int>> kinds;
  for (const WorkerEnd& end : report.workers) {
    if (report.first_failed == end.rank) continue;
    const bool stopped = end.stopped && end.failed();
    kinds[stopped ? "stopped by the launcher" : end.failed() ? how(end) : "ended well"].push_back(end.rank);
  }
  std::string text;
  for (const auto& [kind, list] : kinds) text += (text.empty() ? "" : "; ") + ranks(list) + " " + kind;
  return text;
}

void add_lines(std::string& text, const std::vector<std::string>& lines, std::size_t most) {
  const std::size_t skip = lines.size() > most ? lines.size() - most : 0;
  for (std::size_t i = skip; i < lines.size(); ++i) text += "    | " + lines[i] + "\n";
}

}  // namespace

std::string describe(const LaunchReport& report) {
  if (report.interrupted_by != 0)
    return fmt::format("stopped by {} after {:.1f} s; all {} workers are ended\n",
                       signal_name(report.interrupted_by), report.seconds, report.workers.size());
  if (!report.first_failed) return "";
  const WorkerEnd& first = report.workers.at(static_cast<std::size_t>(*report.first_failed));
  std::string text = fmt::format("rank {} {}{} {}, {:.1f} s after the start (pid {}, {})\n", first.rank,
                                 "failed", report.workers.size() > 1 ? " first: it" : ": it", how(first),
                                 first.seconds, first.pid, report.program);
  if (first.signal == 9) text += "  nobody here sent that SIGKILL; out of memory? `dmesg` would say so\n";
  if (!report.last_lines.empty()) {
    text += "  its last lines:\n";
    add_lines(text, report.last_lines, kShownLines);
  }
  if (const std::string rest = others(report); !rest.empty()) text += "  the others: " + rest + "\n";
  if (!report.dump_dir.empty()) {
    text += fmt::format(
        "  flight recorder: {} in {}\n",
        report.dumps.size() == 1 ? report.dumps.front() : fmt::format("{} dumps", report.dumps.size()),
        report.dump_dir);
    add_lines(text, report.dump_summary, kShownLines);
  }
  if (!report.log_dir.empty()) text += "  logs: " + report.log_dir + "\n";
  return text;
}

std::string to_json(const LaunchReport& report) {
  nlohmann::ordered_json json;
  json["ok"] = report.ok();
  json["exit_status"] = report.exit_status();
  json["job"] = report.job;
  json["program"] = report.program;
  json["workers"] = report.workers.size();
  json["seconds"] = report.seconds;
  json["restarts"] = report.restarts;
  json["interrupted_by"] = report.interrupted_by != 0
                               ? nlohmann::ordered_json(signal_name(report.interrupted_by))
                               : nlohmann::ordered_json();
  json["first_failed"] =
      report.first_failed ? nlohmann::ordered_json(*report.first_failed) : nlohmann::ordered_json();
  json["last_lines"] = report.last_lines;
  json["log_dir"] = report.log_dir;
  json["dump_dir"] = report.dump_dir;
  json["dumps"] = report.dumps;
  json["dump_summary"] = report.dump_summary;
  json["ends"] = nlohmann::ordered_json::array();
  for (const WorkerEnd& end : report.workers) {
    json["ends"].push_back(
        {{"rank", end.rank},
         {"pid", end.pid},
         {"exit_code", end.signal == 0 ? nlohmann::ordered_json(end.exit_code) : nullptr},
         {"signal", end.signal != 0 ? nlohmann::ordered_json(signal_name(end.signal)) : nullptr},
         {"core_dumped", end.core_dumped},
         {"stopped", end.stopped},
         {"seconds", end.seconds}});
  }
  // Workers may write anything; what is no UTF-8 is replaced.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace lockstep
