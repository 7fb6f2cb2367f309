// Reading a dump: a file may come from anywhere, so every value is checked before it is used.
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json_text.h"
#include "lockstep/base/small_file.h"
#include "lockstep/observe/flight_dump.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

constexpr std::uintmax_t kMaxBytes = std::uintmax_t{64} << 20;  // 64 entries of 4096 ranks fit
constexpr int kMaxDepth = 16;                                   // a dump is 5 deep
constexpr std::int64_t kMaxRanks = 1 << 20;

// Where in the document a value was found, for messages: "ranks[3].entries[0].state".
struct Place {
  const Json& json;
  std::string name;

  [[noreturn]] void refuse(const std::string& accepted) const {
    throw UsageError(fmt::format("'{}' is {}; accepted: {}", name, json.type_name(), accepted));
  }
  Place at(const char* key) const {
    if (!json.is_object()) refuse("an object");
    const auto found = json.find(key);
    if (found == json.end())
      throw UsageError(fmt::format("'{}' has no '{}'", name.empty() ? "the document" : name, key));
    return {*found, name.empty() ? key : name + "." + key};
  }
  std::string text() const {
    if (!json.is_string()) refuse("a string");
    return json.get<std::string>();
  }
  std::uint64_t natural() const {
    if (!json.is_number_unsigned()) refuse("an integer from 0");
    return json.get<std::uint64_t>();
  }
  std::int64_t integer(std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t high = std::numeric_limits<std::int64_t>::max()) const {
    const bool fits = json.is_number_unsigned() ? json.get<std::uint64_t>() <=
                                                      std::uint64_t{std::numeric_limits<std::int64_t>::max()}
                                                : json.is_number_integer();
    if (!fits || json.get<std::int64_t>() < low || json.get<std::int64_t>() > high)
      throw UsageError(fmt::format("'{}' is {}; accepted: integers from {} to {}", name,
                                   json.is_number() ? json.dump() : json.type_name(), low, high));
    return json.get<std::int64_t>();
  }
  int small(std::int64_t low, std::int64_t high) const { return static_cast<int>(integer(low, high)); }
  template <class Read>
  auto list(Read read) const {
    if (!json.is_array()) refuse("an array");
    std::vector<decltype(read(*this))> items;
    for (std::size_t i = 0; i < json.size(); ++i)
      items.push_back(read(Place{json[i], fmt::format("{}[{}]", name, i)}));
    return items;
  }
  // The value whose to_string is the text here.
  template <class Enum>
  Enum one_of(std::initializer_list<Enum> values) const {
    const std::string found = text();
    std::string accepted;
    for (Enum value : values) {
      if (found == to_string(value)) return value;
      accepted += fmt::format("{}{}", accepted.empty() ? "" : ", ", to_string(value));
    }
    throw UsageError(fmt::format("'{}' is \"{:.40}\"; accepted: {}", name, found, accepted));
  }
};

FlightEntry read_entry(const Place& place) {
  using enum FlightState;
  return {.sequence = place.at("sequence").natural(),
          .what = place.at("what").text(),
          .detail = place.at("detail").text(),
          .algorithm = place.at("algorithm").text(),
          .state = place.at("state").one_of({waiting, running, done, failed}),
          .begin_ns = place.at("begin_ns").integer(),
          .end_ns = place.at("end_ns").integer()};
}

FlightDump read_dump(const Place& document) {
  using enum ErrorKind;
  using enum RankState;
  FlightDump dump;
  const std::int64_t version = document.at("version").integer();
  if (version != FlightDump::kVersion)
    throw UsageError(fmt::format("version {}; accepted: {}", version, FlightDump::kVersion));
  dump.job = document.at("job").text();
  dump.group = document.at("group").text();
  dump.size = document.at("size").small(1, kMaxRanks);
  dump.rank = document.at("rank").small(0, dump.size - 1);
  if (document.json.contains("world_rank")) dump.world_rank = document.at("world_rank").small(-1, kMaxRanks);
  if (document.json.contains("world_ranks")) {
    const Place names = document.at("world_ranks");
    dump.world_ranks = names.list([](const Place& rank) { return rank.small(0, kMaxRanks); });
    if (!dump.world_ranks.empty() && dump.world_ranks.size() != static_cast<std::size_t>(dump.size))
      throw UsageError(fmt::format("'{}' has {} ranks; accepted: none, or the {} of the group", names.name,
                                   dump.world_ranks.size(), dump.size));
  }
  if (const Place error = document.at("error"); !error.json.is_null()) {
    dump.error_kind = error.at("kind").one_of({usage, peer, timeout, mismatch, system});
    dump.error_message = error.at("message").text();
    if (error.json.contains("gone"))
      dump.gone = error.at("gone").list([](const Place& rank) { return rank.small(0, kMaxRanks); });
  }
  dump.unix_ns = document.at("time").at("unix_ns").integer();
  dump.steady_ns = document.at("time").at("steady_ns").integer();
  document.at("summary").list([](const Place& line) { return line.text(); });  // made anew by who wants it
  std::set<int> seen;
  dump.ranks = document.at("ranks").list([&](const Place& place) {
    FlightRank rank{.rank = place.at("rank").small(0, dump.size - 1),
                    .state = place.at("state").one_of({alive, left, dead}),
                    .signal = place.at("signal").small(0, 127),
                    .pid = place.at("pid").integer(0)};
    const Place entries = place.at("entries");
    rank.recorded = !entries.json.is_null();
    if (rank.recorded) rank.entries = entries.list(read_entry);
    if (!seen.insert(rank.rank).second)
      throw UsageError(fmt::format("'{}': rank {} is there twice", place.name, rank.rank));
    return rank;
  });
  return dump;
}

FlightDump parse(std::string_view text, const std::string& source) {
  try {
    if (text.size() > kMaxBytes)
      throw UsageError(fmt::format("{} bytes; accepted: up to {}", text.size(), kMaxBytes));
    const auto json = parse_json<Json>(text, kMaxDepth);
    return read_dump({json, ""});
  } catch (const Json::exception& error) {
    throw UsageError(fmt::format("flight dump {}: not JSON: {:.160}", source, error.what()));
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("flight dump {}: {}", source, error.what()));
  }
}

}  // namespace

FlightDump parse_flight_dump(std::string_view json) { return parse(json, "(text)"); }

FlightDump read_flight_dump(const std::filesystem::path& path) {
  const auto text = read_small_file(path.string(), kMaxBytes);
  if (!text)
    throw UsageError(fmt::format("flight dump {}: can't be read; accepted: up to {} bytes in a regular file",
                                 path.string(), kMaxBytes));
  return parse(*text, path.string());
}

}  // namespace lockstep
