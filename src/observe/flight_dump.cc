#include "lockstep/observe/flight_dump.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>

#include "lockstep/base/clock.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;  // keys in the order of docs/flight_recorder.md

Json json_of(const FlightEntry& entry) {
  return {{"sequence", entry.sequence},      {"what", entry.what},
          {"detail", entry.detail},          {"algorithm", entry.algorithm},
          {"state", to_string(entry.state)}, {"begin_ns", entry.begin_ns},
          {"end_ns", entry.end_ns}};
}

Json json_of(const FlightRank& rank) {
  Json entries = Json::array();
  for (const FlightEntry& entry : rank.entries) entries.push_back(json_of(entry));
  return {{"rank", rank.rank},
          {"state", to_string(rank.state)},
          {"signal", rank.signal},
          {"pid", rank.pid},
          {"entries", std::move(entries)}};
}

void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw SystemError("write " + path, errno);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

// The new content under a name of its own; gone again unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& target)
      : path_(fmt::format("{}.{}.tmp", target.string(), ::getpid())),
        fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644)) {
    if (!fd_) throw SystemError("open " + path_, errno);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  void write(std::string_view text) { write_all(fd_.get(), text, path_); }
  void rename_to(const std::filesystem::path& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0)
      throw SystemError(fmt::format("rename {} to {}", path_, target.string()), errno);
    path_.clear();
  }

 private:
  std::string path_;
  UniqueFd fd_;
};

}  // namespace

const char* to_string(RankState state) {
  switch (state) {
    case RankState::alive: return "alive";
    case RankState::left: return "left";
    case RankState::dead: return "dead";
  }
  return "unknown";
}

void set_time(FlightDump& dump) {
  using std::chrono::nanoseconds;
  const auto date = std::chrono::system_clock::now().time_since_epoch();
  dump.unix_ns = std::chrono::duration_cast<nanoseconds>(date).count();
  dump.steady_ns = now_ns();
}

std::string to_json(const FlightDump& dump) {
  Json error = nullptr;
  if (dump.error_kind) error = {{"kind", to_string(*dump.error_kind)}, {"message", dump.error_message}};
  Json ranks = Json::array();
  for (const FlightRank& rank : dump.ranks) ranks.push_back(json_of(rank));
  const Json json = {{"version", dump.version},
                     {"job", dump.job},
                     {"group", dump.group},
                     {"rank", dump.rank},
                     {"size", dump.size},
                     {"error", std::move(error)},
                     {"time", {{"unix_ns", dump.unix_ns}, {"steady_ns", dump.steady_ns}}},
                     {"summary", summary(dump)},
                     {"ranks", std::move(ranks)}};
  // A message may quote bytes that are no UTF-8; a dump with a '\uFFFD' in it beats none.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string flight_dump_name(std::string_view group, int rank) {
  std::string name(group);
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (c == '/')
      c = '.';
    else if (!plain && c != '-' && c != '.')
      c = '_';
  }
  return fmt::format("flight-{}-rank{}.json", name, rank);
}

std::filesystem::path write_flight_dump(const FlightDump& dump, const std::filesystem::path& dir) noexcept {
  try {
    std::filesystem::create_directories(dir);
    std::filesystem::path target = dir / flight_dump_name(dump.group, dump.rank);
    TemporaryFile file(target);
    file.write(to_json(dump));
    file.rename_to(target);
    return target;
  } catch (const std::exception& error) {
    try {
      log().error("flight recorder of group {} was not written: {}", dump.group, error.what());
    } catch (...) {  // no memory left for a message: nothing more can be done
    }
    return {};
  }
}

}  // namespace lockstep
