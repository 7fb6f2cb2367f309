#include "comm/agree/mismatch.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

constexpr const char* kDifferent = "ranks called different things: ";

std::string each_called(const RankNames& names, const Caller& one, const Caller& other) {
  return names.named(one.rank) + " called " + describe(one.card) + " but " + names.named(other.rank) +
         " called " + describe(other.card);
}

}  // namespace

std::string who_called_what(const RankNames& names, std::span<const Caller> callers) {
  std::vector<std::pair<const CallCard*, std::string>> camps;  // a card, and who has it
  std::uint64_t first = callers.front().card.sequence;
  bool one_number = true;
  for (const Caller& caller : callers) {
    one_number = one_number && caller.card.sequence == callers.front().card.sequence;
    first = std::min(first, caller.card.sequence);
    const auto like = std::find_if(camps.begin(), camps.end(), [&](const auto& camp) {
      return same_call(*camp.first, caller.card) && camp.first->divisor == caller.card.divisor;
    });
    if (like == camps.end())
      camps.emplace_back(&caller.card, names.brief(caller.rank));
    else
      like->second += ", " + names.brief(caller.rank);
  }
  std::string text = "operation " + std::to_string(first) + " of group " + names.group() + ": " + kDifferent;
  for (std::size_t i = 0; i < camps.size(); ++i) {
    const auto& [card, who] = camps[i];
    text += (i == 0 ? "rank " : "; rank ") + who + " called " + describe(*card);
    if (!one_number) text += " as operation " + std::to_string(card->sequence);
  }
  return text;
}

std::string who_called_what(const RankNames& names, const Caller& one, const Caller& other) {
  const bool ordered = names.world(one.rank) < names.world(other.rank);
  const std::array both = {ordered ? one : other, ordered ? other : one};
  return who_called_what(names, both);
}

std::string who_called_instead(const RankNames& names, const Caller& one, const Caller& other) {
  return "group " + names.group() + ": " + each_called(names, one, other);
}

std::string who_waits_elsewhere(const RankNames& names, const Caller& one, const Caller& other) {
  return "group " + names.group() + ": " + kDifferent + each_called(names, one, other);
}

std::string why_unfit(const RankNames& names, const Caller& me, const std::string& where,
                      const Arrived& message) {
  Arrived as_long = message;  // the length apart from the rest
  as_long.expected = message.bytes;
  const Caller from{message.from, message.card};
  if (!fits(me.card, as_long))
    return is_message(me.card) ? who_called_instead(names, me, from) : who_called_what(names, me, from);
  return where + ": " + names.named(message.from) + " sent " + std::to_string(message.bytes) +
         " bytes where " + names.named(me.rank) + " expected " + std::to_string(message.expected) +
         "; all ranks need the same cost table and LOCKSTEP_ settings";
}

}  // namespace lockstep
