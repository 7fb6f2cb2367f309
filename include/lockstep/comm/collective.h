// The collectives by name.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

enum class Collective : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  barrier,
  send,
  recv,
  split
};
inline constexpr int kCollectives = 12;

const char* to_string(Collective what);
Collective parse_collective(std::string_view text);  // throws UsageError that lists the names

}  // namespace lockstep
