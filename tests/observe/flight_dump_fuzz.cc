// Throws bytes at the reader of flight dumps: a dump that is taken survives being written and read again, and
// can be summed up in sentences of one line; everything else is refused with a UsageError of one line.
#include <string_view>

#include "base/fuzz_driver.h"
#include "lockstep/base/error.h"
#include "lockstep/observe/flight_dump.h"

void lockstep::fuzz::one(std::string_view input) {
  FlightDump dump;
  try {
    dump = parse_flight_dump(input);
  } catch (const UsageError& refusal) {
    require(std::string_view(refusal.what()).find('\n') == std::string_view::npos,
            "a refusal of several lines");
    return;
  }
  accepted = true;
  require(dump.rank >= 0 && dump.rank < dump.size, "a rank outside of the group");
  require(!summary(dump).empty(), "nothing to say");
  const std::string text = to_json(dump);
  require(to_json(parse_flight_dump(text)) == text, "a dump changes when it is written and read");
}

std::vector<std::string> lockstep::fuzz::seeds() {
  FlightDump dump{.job = "job", .group = "world/0", .rank = 1, .size = 3, .error_kind = ErrorKind::peer};
  dump.error_message = "rank 2 died";
  dump.unix_ns = 1'700'000'000'000'000'000;
  dump.steady_ns = 5'000'000'000;
  const FlightEntry done{.sequence = 16,
                         .what = "barrier",
                         .detail = "",
                         .algorithm = "",
                         .state = FlightState::done,
                         .begin_ns = 1'000'000'000,
                         .end_ns = 2'000'000'000};
  FlightEntry waiting = done;
  waiting.sequence = 17;
  waiting.what = "all_reduce";
  waiting.detail = "f32 × 4, sum";
  waiting.state = FlightState::waiting;
  waiting.end_ns = 0;
  dump.ranks = {{.rank = 0, .pid = 10, .entries = {done, waiting}},
                {.rank = 1, .pid = 11, .entries = {waiting}},
                {.rank = 2, .state = RankState::dead, .signal = 9, .recorded = false}};
  return {to_json(dump), to_json(FlightDump{.group = "world"})};
}
