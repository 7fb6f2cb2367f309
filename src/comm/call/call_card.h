// What a rank calls, in a form that travels with its messages: enough to see that two ranks called the same,
// and to say what each called when they did not.
#pragma once

#include <cstdint>
#include <string>

#include "comm/call/call.h"
#include "comm/call/rank_names.h"

namespace lockstep {

// Fixed size and layout (little-endian machines only), no padding: it is copied to and from the wire as it
// is.
struct CallCard {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  double divisor = 0;  // of avg, as far as the sender knows it; else 0
  std::int32_t root = -1;
  std::uint8_t what = 0;
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::uint8_t order = 0;
  char algorithm[20] = {};  // that was asked for (by the call or LOCKSTEP_ALGORITHM); zeros: any
  std::uint32_t check = 0;  // of the message's envelope: the channel's own
};
static_assert(sizeof(CallCard) == 56);

CallCard card_of(const Call& call, std::string_view forced_algorithm);
// The call that a card speaks of, for its description; values that are none of ours become "unknown".
std::string describe(const CallCard& card);
// Same sequence and same call. Divisors agree when they are equal or one side leaves it to the others.
bool same_call(const CallCard& a, const CallCard& b);
// "operation 7 of group world: ranks called different things: rank 0 called …; rank 3 called …"
std::string describe_mismatch(const std::string& group, const RankNames& names, int rank_a, const CallCard& a,
                              int rank_b, const CallCard& b);

}  // namespace lockstep
