#include "lockstep/observe/flight_dump.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/output_file.h"
#include "lockstep/base/clock.h"
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
  const OrderedJson json = {{"version", dump.version},
                            {"job", dump.job},
                            {"group", dump.group},
                            {"rank", dump.rank},
                            {"size", dump.size},
                            {"world_rank", dump.world_rank},
                            {"world_ranks", dump.world_ranks},
                            {"error", std::move(error)},
                            {"time", {{"unix_ns", dump.unix_ns}, {"steady_ns", dump.steady_ns}}},
                            {"summary", summary(dump)},
                            {"ranks", std::move(ranks)}};
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
    replace_file(target, to_json(dump), Sync::no);
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
