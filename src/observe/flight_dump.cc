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

using OrderedJson = nlohmann::ordered_json;  // keys in the order of docs/flight_recorder.md

OrderedJson json_of(const FlightEntry& entry) {
  return {{"sequence", entry.sequence},      {"what", entry.what},
          {"detail", entry.detail},          {"algorithm", entry.algorithm},
          {"state", to_string(entry.state)}, {"begin_ns", entry.begin_ns},
          {"end_ns", entry.end_ns}};
}

OrderedJson json_of(const FlightRank& rank) {
  OrderedJson entries = OrderedJson::array();
  for (const FlightEntry& entry : rank.entries) entries.push_back(json_of(entry));
  return {{"rank", rank.rank},
          {"state", to_string(rank.state)},
          {"signal", rank.signal},
          {"pid", rank.pid},
          {"entries", rank.recorded ? std::move(entries) : OrderedJson(nullptr)}};
}

void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw SystemError("write " + path, errno);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

// The new content, without a name where the file system can do that (O_TMPFILE), so that a writer that is
// killed leaves nothing; elsewhere under a name of its own, gone again unless it was renamed.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& target)
      : fd_(::open(target.parent_path().c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644)) {
    if (fd_) return;
    path_ = fmt::format("{}.{}.tmp", target.string(), ::getpid());
    fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!fd_) throw SystemError("open " + path_, errno);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  void write(std::string_view text) { write_all(fd_.get(), text, path_); }

  void publish(const std::filesystem::path& target) {
    if (path_.empty() && link_to(target)) return;
    if (path_.empty()) {  // an old dump stands there: take a name after all, and replace it
      path_ = fmt::format("{}.{}.tmp", target.string(), ::getpid());
      if (!link_to(path_)) throw SystemError("link " + path_, errno);
    }
    if (::rename(path_.c_str(), target.c_str()) != 0)
      throw SystemError(fmt::format("rename {} to {}", path_, target.string()), errno);
    path_.clear();
  }

 private:
  bool link_to(const std::filesystem::path& name) const {
    const std::string own = fmt::format("/proc/self/fd/{}", fd_.get());
    return ::linkat(AT_FDCWD, own.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
  }

  std::string path_;  // empty while it has no name
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
  OrderedJson error = nullptr;
  if (dump.error_kind)
    error = {{"kind", to_string(*dump.error_kind)}, {"message", dump.error_message}, {"gone", dump.gone}};
  OrderedJson ranks = OrderedJson::array();
  for (const FlightRank& rank : dump.ranks) ranks.push_back(json_of(rank));
  const OrderedJson json = {
      {"version", dump.version},   {"job", dump.job},
      {"group", dump.group},       {"rank", dump.rank},
      {"size", dump.size},         {"world_rank", dump.world_rank},
      {"error", std::move(error)}, {"time", {{"unix_ns", dump.unix_ns}, {"steady_ns", dump.steady_ns}}},
      {"summary", summary(dump)},  {"ranks", std::move(ranks)}};
  // A message may quote bytes that are no UTF-8; a dump with a '\uFFFD' in it beats none.
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
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
    NewFile file(target);
    file.write(to_json(dump));
    file.publish(target);
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
