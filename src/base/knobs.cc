#include "lockstep/base/knobs.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "base/environment.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kKnown[] = {
    "LOCKSTEP_LOG",         "LOCKSTEP_ALGORITHM",     "LOCKSTEP_TIMEOUT_S",   "LOCKSTEP_INIT_TIMEOUT_S",
    "LOCKSTEP_SPIN_US",     "LOCKSTEP_ARENA",         "LOCKSTEP_HUGE_PAGES",  "LOCKSTEP_DUMP_DIR",
    "LOCKSTEP_CACHE_DIR",   "LOCKSTEP_NODE_SIZE",     "LOCKSTEP_JOB",         "LOCKSTEP_RESTART",
    "LOCKSTEP_ENGINE",      "LOCKSTEP_TLS",           "LOCKSTEP_TCP_STREAMS", "LOCKSTEP_SECRET",
    "LOCKSTEP_SECRET_FILE", "LOCKSTEP_SOCKET_IFNAME", "LOCKSTEP_AGENT",       "LOCKSTEP_WARN_AFTER_S"};

[[noreturn]] void refuse(const char* name, std::string_view value, const char* accepted) {
  throw UsageError(std::string(name) + "='" + std::string(value) +
                   "' is not understood; accepted: " + accepted);
}

std::chrono::milliseconds seconds(const char* name, std::string_view text, const std::string& also = "") {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0.001) || !(value <= 1e7))
    refuse(name, text, (also + "seconds from 0.001 to 10000000, for example 30 or 0.5").c_str());
  return std::chrono::milliseconds(std::llround(value * 1000));
}

int whole_number(const char* name, std::string_view text, int most, const char* accepted) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > most)
    refuse(name, text, accepted);
  return value;
}

std::string one_of(const char* name, std::string_view text, const std::vector<std::string>& accepted) {
  if (std::find(accepted.begin(), accepted.end(), text) != accepted.end()) return std::string(text);
  std::string list;
  for (const std::string& word : accepted) list += (list.empty() ? "" : ", ") + word;
  refuse(name, text, list.c_str());
}

void refuse_unknown() {
  for (const std::string& text : all_variables()) {
    if (!text.starts_with("LOCKSTEP_")) continue;
    const std::string name = text.substr(0, text.find('='));
    if (std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown)) continue;
    std::string known;
    for (std::string_view k : kKnown) known += (known.empty() ? "" : ", ") + std::string(k);
    throw UsageError("unknown environment variable " + name + "; known: " + known);
  }
}

std::string default_cache_dir() {
  if (const auto xdg = read_filled_variable("XDG_CACHE_HOME")) return *xdg + "/lockstep";
  if (const auto home = read_filled_variable("HOME")) return *home + "/.cache/lockstep";
  return "off";
}

}  // namespace

Knobs Knobs::from_environment() {
  refuse_unknown();
  Knobs knobs;
  if (const auto v = read_filled_variable("LOCKSTEP_LOG"))
    knobs.log = one_of("LOCKSTEP_LOG", *v, {"trace", "debug", "info", "warn", "error", "off"});
  if (const auto v = read_filled_variable("LOCKSTEP_ALGORITHM")) knobs.algorithm = *v;
  if (const auto v = read_filled_variable("LOCKSTEP_ENGINE")) knobs.engine = *v;
  if (const auto v = read_filled_variable("LOCKSTEP_TLS"))
    knobs.tls = one_of("LOCKSTEP_TLS", *v, {"auto", "on", "off"});
  if (const auto v = read_filled_variable("LOCKSTEP_TCP_STREAMS")) {
    knobs.tcp_streams = whole_number("LOCKSTEP_TCP_STREAMS", *v, 16, "1 to 16");
    if (knobs.tcp_streams < 1) refuse("LOCKSTEP_TCP_STREAMS", *v, "1 to 16");
  }
  if (const auto v = read_filled_variable("LOCKSTEP_TIMEOUT_S"))
    knobs.timeout = seconds("LOCKSTEP_TIMEOUT_S", *v);
  if (const auto v = read_filled_variable("LOCKSTEP_WARN_AFTER_S"))
    knobs.warn_after =
        *v == "0" ? std::chrono::milliseconds(0) : seconds("LOCKSTEP_WARN_AFTER_S", *v, "0 (never), or ");
  if (const auto v = read_filled_variable("LOCKSTEP_INIT_TIMEOUT_S"))
    knobs.init_timeout = seconds("LOCKSTEP_INIT_TIMEOUT_S", *v);
  if (const auto v = read_filled_variable("LOCKSTEP_SPIN_US")) {
    knobs.spin = std::chrono::microseconds(
        whole_number("LOCKSTEP_SPIN_US", *v, 1'000'000, "whole microseconds from 0 to 1000000"));
  }
  if (const auto v = read_filled_variable("LOCKSTEP_ARENA")) {
    try {
      knobs.arena_bytes = parse_bytes(*v);
    } catch (const UsageError&) {
      refuse("LOCKSTEP_ARENA", *v, "a byte size from 64M to 4T, for example 64G");
    }
    if (knobs.arena_bytes < (std::uint64_t{64} << 20) || knobs.arena_bytes > (std::uint64_t{1} << 42))
      refuse("LOCKSTEP_ARENA", *v, "a byte size from 64M to 4T, for example 64G");
  }
  if (const auto v = read_filled_variable("LOCKSTEP_HUGE_PAGES")) {
    if (*v != "0" && *v != "1") refuse("LOCKSTEP_HUGE_PAGES", *v, "0 or 1");
    knobs.huge_pages = *v == "1";
  }
  if (const auto v = read_filled_variable("LOCKSTEP_DUMP_DIR")) knobs.dump_dir = *v;
  knobs.cache_dir = default_cache_dir();
  if (const auto v = read_filled_variable("LOCKSTEP_CACHE_DIR")) knobs.cache_dir = *v;
  if (const auto v = read_filled_variable("LOCKSTEP_NODE_SIZE"))
    knobs.node_size = whole_number("LOCKSTEP_NODE_SIZE", *v, 1'000'000,
                                   "a count of ranks from 0 (ask the system) to 1000000");
  return knobs;
}

}  // namespace lockstep
