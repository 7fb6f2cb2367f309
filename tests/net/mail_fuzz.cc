// Throws bytes at the readers of messages. MailParser finds the same messages however the bytes are cut,
// keeps to its bound, and the texts of the roster are refused or survive being written and read again.
//
// Input: byte 0: the bound; byte 1: how many bytes arrive at a time; then the bytes.
#include <algorithm>
#include <optional>
#include <string_view>

#include "base/fuzz_driver.h"
#include "net/mail.h"
#include "net/roster_mail.h"

namespace lockstep::net {
namespace {

struct Found {
  std::vector<std::string> messages;
  bool refused = false;
  bool operator==(const Found&) const = default;
};

Found by_parser(std::string_view bytes, std::size_t bound, std::size_t piece) {
  Found found;
  MailParser parser(bound);
  try {
    while (!bytes.empty()) {
      const std::size_t count = std::min(piece, bytes.size());
      parser.take(std::as_bytes(std::span(bytes.data(), count)));
      bytes.remove_prefix(count);
      while (auto message = parser.next()) found.messages.push_back(*message);
    }
  } catch (const ConnectionLost&) {
    found.refused = true;
  }
  return found;
}

// The same, from all bytes at once and with nothing clever.
Found by_hand(std::string_view bytes, std::size_t bound) {
  Found found;
  while (bytes.size() >= 4) {
    std::size_t length = 0;
    for (const char c : bytes.substr(0, 4)) length = length * 256 + static_cast<unsigned char>(c);
    if (length > bound) {
      found.refused = true;
      break;
    }
    if (bytes.size() < 4 + length) break;
    found.messages.emplace_back(bytes.substr(4, length));
    bytes.remove_prefix(4 + length);
  }
  return found;
}

void read_as_roster(const std::string& text) {
  try {
    const CardMail mail = CardMail::parse(text);
    const CardMail again = CardMail::parse(mail.text());
    fuzz::require(again.rank == mail.rank && again.size == mail.size && again.card == mail.card,
                  "a card changes");
    fuzz::accepted = true;
  } catch (const BadRosterMail&) {
  }
  for (const int size : {1, 2, 3}) {
    try {
      const auto cards = parse_answer(text, size);
      fuzz::require(cards.size() == static_cast<std::size_t>(size), "a roster of another size");
      fuzz::require(parse_answer(cards_text(cards), size) == cards, "a roster changes");
      fuzz::accepted = true;
    } catch (const BadRosterMail&) {
    } catch (const Error& error) {
      fuzz::require(std::string_view(error.what()).find('\n') == std::string_view::npos,
                    "a refusal of several lines");
      fuzz::accepted = true;
    }
  }
}

std::string mail(const std::string& text) {
  return std::string{'\0', '\0', static_cast<char>(text.size() >> 8), static_cast<char>(text.size() & 255)} +
         text;
}

}  // namespace

}  // namespace lockstep::net

void lockstep::fuzz::one(std::string_view input) {
  using namespace lockstep::net;
  if (input.size() < 2) return;
  const std::size_t bound = static_cast<unsigned char>(input[0]);
  const std::size_t piece = 1 + static_cast<unsigned char>(input[1]);
  const std::string_view bytes = input.substr(2);
  const Found found = by_parser(bytes, bound, piece);
  require(found == by_hand(bytes, bound), "the parser finds other messages");
  for (const std::string& message : found.messages) {
    require(message.size() <= bound, "a message above the bound");
    read_as_roster(message);
  }
  read_as_roster(std::string(bytes));
}

std::vector<std::string> lockstep::fuzz::seeds() {
  using namespace lockstep::net;
  const std::string front = "\xff\x05";
  return {front + mail("card 1 2\nabc") + mail("card 0 9\n"), front + mail("cards 2\n3\nabc0\n") + mail(""),
          front + mail("timeout 1 5\nranks 1, 5 did not come"),
          front + mail("peer 3\nrank 3 went") + mail("usage\nno"),
          front + mail("cards 1\n200\n" + std::string(200, 'x'))};
}
