// Who called what: a rank's call in a form that its peers can read, in shared memory or with its messages.
// Enough to see that two ranks called the same, and to say what each called when they did not
// (comm/agree/mismatch.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "comm/call/call.h"

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
  std::uint8_t device = 0;  // its kind
  char algorithm[19] = {};  // that was asked for (by the call or LOCKSTEP_ALGORITHM); zeros: any
  std::uint32_t check = 0;  // that this is a card: the transport's own
};
static_assert(sizeof(CallCard) == 56);

// Writes the card of `call` where it is to lie: copying one whose fields were just written is slow.
void write_card(CallCard& to, const Call& call, std::string_view forced_algorithm);
inline CallCard card_of(const Call& call, std::string_view forced_algorithm) {
  CallCard card;
  write_card(card, call, forced_algorithm);
  return card;
}
// The call that a card speaks of, for its description; values that are none of ours become "unknown".
std::string describe(const CallCard& card);
// Same number and same call. Divisors agree when they are equal or one side leaves it to the others.
inline bool same_divisor(const CallCard& a, const CallCard& b) {
  return a.divisor == b.divisor || a.divisor == kDivisorOfOthers || b.divisor == kDivisorOfOthers;
}
inline bool same_call(const CallCard& a, const CallCard& b) {
  return a.sequence == b.sequence && same_divisor(a, b) && a.what == b.what && a.count == b.count &&
         a.dtype == b.dtype && a.op == b.op && a.root == b.root && a.order == b.order &&
         a.device == b.device && std::memcmp(a.algorithm, b.algorithm, sizeof(a.algorithm)) == 0;
}
inline bool is_message(const CallCard& card) { return is_message(static_cast<Collective>(card.what)); }
// What a send and its recv need to have in common.
inline bool same_message(const CallCard& a, const CallCard& b) {
  return is_message(a) && is_message(b) && a.count == b.count && a.dtype == b.dtype && a.device == b.device;
}

}  // namespace lockstep
