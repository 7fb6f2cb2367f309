// Do all ranks call the same? And where they don't: the one line that says who called what, the same whatever
// brought the cards.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "comm/agree/call_card.h"
#include "comm/call/rank_names.h"

namespace lockstep {

// Of `ranks` ranks, rank r having the card `card(r)`. Divisors are held against the first that is said: a
// rank that leaves it to the others agrees with any.
template <class CardOf>
bool all_same(int ranks, CardOf&& card) {
  int says = 0;
  while (says + 1 < ranks && card(says).divisor == kDivisorOfOthers) ++says;
  bool same = true;
  for (int r = 0; r < ranks; ++r) same &= same_call(card(r), card(0)) && same_divisor(card(r), card(says));
  return same;
}

struct Caller {
  int rank;
  CallCard card;
};

// "operation 7 of group world: ranks called different things: rank 0, 2 called …; rank 3 called …", in the
// order of `callers`, ranks that agree together. Where their numbers differ each says its own.
std::string who_called_what(const RankNames& names, std::span<const Caller> callers);
// The same of two, the lower in the world first.
std::string who_called_what(const RankNames& names, const Caller& one, const Caller& other);

// "group world: rank 1 called recv(…) but rank 2 called send(…)": of calls that have no number in common.
std::string who_called_instead(const RankNames& names, const Caller& one, const Caller& other);
// "group world: ranks called different things: rank 1 called recv(…) but rank 2 called barrier()": of a rank
// in a message with one that waits for it in a collective.
std::string who_waits_elsewhere(const RankNames& names, const Caller& one, const Caller& other);

// A message as it came, of `expected` bytes where it is received.
struct Arrived {
  int from;
  const CallCard& card;
  std::uint64_t bytes;
  std::uint64_t expected;
};

// Whether it belongs to the call of `mine`.
inline bool fits(const CallCard& mine, const Arrived& message) {
  return message.bytes == message.expected &&
         (is_message(mine) ? same_message(message.card, mine) : same_call(message.card, mine));
}
// Why one does not that came to `me`, which is in `where` ("barrier(), operation 3 of group world").
std::string why_unfit(const RankNames& names, const Caller& me, const std::string& where,
                      const Arrived& message);

// The collectives that this rank called last, by their numbers: what a card is held against that a peer sends
// while this rank is elsewhere.
class CallHistory {
 public:
  void add(const CallCard& card) {
    if (card.sequence != 0) past_[card.sequence % past_.size()] = card;
  }
  // What this rank called under the number of `theirs`, if that is another call; null: it is the same, or not
  // yet called, or too long ago. Calls that engines make of themselves, and messages, have no number.
  const CallCard* other_than(const CallCard& theirs) const {
    const CallCard& own = past_[theirs.sequence % past_.size()];
    if (theirs.sequence == 0 || own.sequence != theirs.sequence || is_message(theirs)) return nullptr;
    return same_call(theirs, own) ? nullptr : &own;
  }

 private:
  std::array<CallCard, 8> past_;
};

}  // namespace lockstep
