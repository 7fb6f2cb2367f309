// What a group's flight recorders held when it failed: as seen by one rank, as a file, and in plain
// sentences. docs/flight_recorder.md describes the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/observe/flight_recorder.h"

namespace lockstep {

// left: it closed the group and went. dead: its process is gone without that.
enum class RankState : std::uint8_t { alive, left, dead };

const char* to_string(RankState state);  // "alive", "left", "dead"

struct FlightRank {
  int rank = 0;  // in the group
  RankState state = RankState::alive;
  int signal = 0;                         // that killed it; 0: unknown, as it is to anybody but its parent
  std::int64_t pid = 0;                   // 0: unknown
  std::vector<FlightEntry> entries = {};  // oldest first
  bool recorded = true;                   // false: its ring can't be read from here, and entries mean nothing
};

struct FlightDump {
  static constexpr int kVersion = 1;

  int version = kVersion;
  std::string job = {};    // the launcher's name of the run; may be empty
  std::string group = {};  // "world", "world/0", …
  int rank = 0;            // whose view this is
  int world_rank = -1;     // its rank in the world; -1: unknown
  int size = 1;            // ranks of the group
  // The rank in the world of each rank of the group; empty: unknown, they are called by their numbers here.
  std::vector<int> world_ranks = {};
  std::optional<ErrorKind> error_kind = std::nullopt;  // none: dumped without a failure
  std::string error_message = {};
  std::vector<int> gone = {};          // world ranks whose end the error gives as the reason: PeerError's
  std::int64_t unix_ns = 0;            // when, as a date
  std::int64_t steady_ns = 0;          // when, on the clock of the entries; 0: unknown, and so is how long
  std::vector<FlightRank> ranks = {};  // those whose recorders could be read, in any order
};

// Now, for the two times of a dump.
void set_time(FlightDump& dump);

// Who waits for whom, one sentence each, never empty. Ranks are called by their numbers in the world; root,
// to and from inside a call are numbers in the group, as the program gave them.
//   "rank 2 died (signal unknown); its last operation was 16, barrier(), finished 2.4 s ago"
//   "operation 17 of group world: rank 0 called all_reduce(f32 × 4, sum), rank 1 called barrier()"
//   "operation 17 of group world: ranks 0, 1, 3 wait in all_reduce(f32 × 1024, sum) for 2.3 s;
//    rank 2 is at operation 16, finished 2.4 s ago, and has not called 17"
// Where ranks share a clause its time is the longest of theirs.
std::vector<std::string> summary(const FlightDump& dump);

// The file's text: one JSON object, with the summary.
std::string to_json(const FlightDump& dump);

// "flight-world.0-rank3.json" for group "world/0": '/' becomes '.', what else is unfit for a name '_'.
std::string flight_dump_name(std::string_view group, int rank);

// Writes dir/flight_dump_name(…), at once or not at all (a new file is renamed over an old one); makes
// `dir`. Returns its path, empty when that failed: a failing group has its own error to report, so this
// one is only logged.
std::filesystem::path write_flight_dump(const FlightDump& dump, const std::filesystem::path& dir) noexcept;

// Reads what write_flight_dump wrote. Keys it does not know are passed over. Throws UsageError, naming the
// file and what is wrong with it, for another version and for anything that is no such dump.
FlightDump read_flight_dump(const std::filesystem::path& path);
FlightDump parse_flight_dump(std::string_view json);

}  // namespace lockstep
