// One rank of the fault test: calls what the plan says until something throws, then says what it was.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::testing {

// Lines that a rank says
//   ready                     its groups are made and calls begin
//   fault <ns>                it commits the plan's fault now
//   done                      it has no more to say
//   error <tab-separated fields of Report>
struct Report {
  std::string group;  // "init" when it has none yet
  ErrorKind kind = ErrorKind::system;
  int peer = -1;             // PeerError's rank, in the world
  std::vector<int> missing;  // TimeoutError's ranks, in the world
  std::int64_t thrown_ns = 0;
  std::int64_t sticky_ns = 0;  // of the further calls, the median: a busy machine may hold up one
  std::string sticky;          // "same", or how a further call differed
  std::string text;
};
std::string to_line(const Report& report);
Report parse_report(const std::string& line);

// The main function of a rank; returns the exit status.
int fault_worker(std::uint64_t seed, int round);

}  // namespace lockstep::testing
