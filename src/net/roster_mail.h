// The two messages of a roster, as text. What comes from the network is checked whatever its sender proved.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::net {

inline constexpr std::size_t kMostCard = std::size_t{64} << 10;
inline constexpr int kMostRanks = 1 << 20;

// A rank to rank 0.
struct CardMail {
  int rank = 0;
  int size = 0;
  std::string card;

  std::string text() const;
  static CardMail parse(std::string_view text);  // throws BadRosterMail
};

// Rank 0 to every rank: all cards, or why there are none.
std::string cards_text(const std::vector<std::string>& cards);
std::string refusal_text(const Error& error);
// The cards, exactly `size` of them; throws the refusal as the error it was, BadRosterMail otherwise.
std::vector<std::string> parse_answer(std::string_view text, int size);

struct BadRosterMail {};

}  // namespace lockstep::net
