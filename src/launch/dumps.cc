#include "launch/dumps.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

// The "summary" lines of one dump; none when the file is unreadable or half written.
std::vector<std::string> summary_of(const fs::path& path) {
  std::ifstream file(path);
  const auto dump = nlohmann::json::parse(file, nullptr, false);
  std::vector<std::string> lines;
  if (!dump.is_object() || !dump.contains("summary") || !dump["summary"].is_array()) return lines;
  for (const auto& line : dump["summary"])
    if (line.is_string()) lines.push_back(line.get<std::string>());
  return lines;
}

}  // namespace

void find_dumps(const std::string& folder, LaunchReport& report) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("flight-") && name.ends_with(".json")) report.dumps.push_back(name);
  }
  if (report.dumps.empty()) return;
  report.dump_dir = folder;
  std::sort(report.dumps.begin(), report.dumps.end());
  // The first failing rank's own dump of the whole group tells most.
  std::vector<std::string> order = report.dumps;
  const std::string best = "flight-world-rank" + std::to_string(report.first_failed.value_or(0)) + ".json";
  std::stable_partition(order.begin(), order.end(),
                        [](const std::string& n) { return n.starts_with("flight-world-"); });
  std::stable_partition(order.begin(), order.end(), [&best](const std::string& n) { return n == best; });
  for (const std::string& name : order) {
    report.dump_summary = summary_of(fs::path(folder) / name);
    if (!report.dump_summary.empty()) return;
  }
}

}  // namespace lockstep::launcher
