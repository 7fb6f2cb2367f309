#include "launch/dumps.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "base/json_text.h"
#include "lockstep/base/fd.h"
#include "lockstep/observe/stop_sign.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

// A dump that a worker of this user wrote, to be read. The folder may be one in which everybody writes: what
// else bears such a name there is not opened, since a pipe would be waited for without end.
struct DumpFile {
  explicit DumpFile(const fs::path& path)
      : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW)) {
    struct stat info {};
    if (fd && ::fstat(fd.get(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid())
      text.open("/proc/self/fd/" + std::to_string(fd.get()));
  }
  bool is_ours() const { return text.is_open(); }

  UniqueFd fd;
  std::ifstream text;
};

// The "summary" lines of one dump; none when the file is unreadable or half written.
std::vector<std::string> summary_of(const fs::path& path) {
  DumpFile file(path);
  const std::string text(std::istreambuf_iterator<char>(file.text), {});
  const auto dump = try_json<nlohmann::json>(text);
  std::vector<std::string> lines;
  if (!dump.is_object() || !dump.contains("summary") || !dump["summary"].is_array()) return lines;
  for (const auto& line : dump["summary"])
    if (line.is_string()) lines.push_back(line.get<std::string>());
  return lines;
}

// What a dump says in front of its long lists; it is read no further.
class Head final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string job;
  std::int64_t world_rank = -1;
  std::vector<int> gone;
  bool failed = false;  // it was written because of an error

  bool key(string_t& name) override {
    key_ = name;
    return name != "summary" && name != "ranks";
  }
  bool string(string_t& text) override {
    if (key_ == "job") job = text;
    return true;
  }
  bool number_unsigned(number_unsigned_t number) override {
    return number_integer(static_cast<number_integer_t>(number));
  }
  bool number_integer(number_integer_t number) override {
    if (key_ == "world_rank") world_rank = number;
    if (key_ == "gone" && number >= 0 && number < kMostNodes * kMostWorkers)
      gone.push_back(static_cast<int>(number));
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    failed = failed || key_ == "error";
    return true;
  }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  std::string key_;
};

// Of a dump of ours; none of any other file.
std::optional<Head> head_of(const fs::path& dump) {
  DumpFile file(dump);
  if (!file.is_ours()) return std::nullopt;
  Head head;
  nlohmann::json::sax_parse(file.text, &head);
  return head;
}

bool is_dump(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.starts_with("flight-") && name.ends_with(".json");
}

// "lockstep-0123456789ab-attempt-0", "lockstep-0123456789ab-dumps": see launcher.cc and starter.cc.
bool is_our_name(const fs::path& folder) {
  static const std::regex form("lockstep-[0-9a-f]{12}-(attempt-[0-9]+|dumps)");
  return std::regex_match(folder.filename().string(), form);
}

// A folder, no link to one, of this user's, in which there are dumps alone.
bool is_ours(const fs::path& folder) {
  struct stat info {};
  if (!is_our_name(folder) || ::lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) ||
      info.st_uid != ::geteuid())
    return false;
  std::error_code error;
  bool any = false;  // else somebody may be about to write one
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!is_dump(entry.path())) return false;
    any = true;
  }
  return any && !error;
}

}  // namespace

void forget_old_dumps(const std::string& temporary) {
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  std::error_code error;
  fs::directory_iterator at(temporary, error);
  for (const fs::directory_iterator end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    const auto written = is_ours(at->path()) ? fs::last_write_time(at->path(), gone) : fs::file_time_type();
    if (!gone && written != fs::file_time_type()) found.emplace_back(written, at->path());
  }
  std::sort(found.begin(), found.end());
  for (std::size_t i = 0; i + kKeptDumps < found.size(); ++i) fs::remove_all(found[i].second, error);
}

void clear_stop(const std::string& folder, const std::string& job, Dumps dumps) {
  std::error_code error;
  fs::remove(stop_sign(folder, job), error);
  if (dumps == Dumps::stay) return;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with("flight-")) continue;
    const std::optional<Head> head = head_of(entry.path());
    if (head && head->job == job && !head->failed) fs::remove(entry.path(), error);
  }
}

std::map<int, std::vector<int>> find_blames(const std::string& folder, const std::string& job) {
  std::map<int, std::vector<int>> blames;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!is_dump(entry.path())) continue;
    const std::optional<Head> head = head_of(entry.path());
    if (!head || head->job != job || head->world_rank < 0) continue;
    auto& ranks = blames[static_cast<int>(head->world_rank)];
    ranks.insert(ranks.end(), head->gone.begin(), head->gone.end());
  }
  return blames;
}

void find_dumps(const std::string& folder, const std::string& job, LaunchReport& report) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!is_dump(entry.path())) continue;
    if (const std::optional<Head> head = head_of(entry.path());
        head && (head->job.empty() || head->job == job))
      report.dumps.push_back(entry.path().filename().string());
  }
  if (report.dumps.empty()) return;
  report.dump_dir = folder;
  if (is_our_name(folder)) forget_old_dumps(fs::path(folder).parent_path().string());
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
