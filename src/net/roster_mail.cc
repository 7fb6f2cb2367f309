#include "net/roster_mail.h"

#include <charconv>

namespace lockstep::net {
namespace {

// Reads a message from its front.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool skip(std::string_view word) {
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  void expect(std::string_view word) {
    if (!skip(word)) throw BadRosterMail{};
  }
  int number(int most) {
    int value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0 || value > most) throw BadRosterMail{};
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return value;
  }
  std::string_view bytes(std::size_t count) {
    if (count > text_.size()) throw BadRosterMail{};
    const std::string_view taken = text_.substr(0, count);
    text_.remove_prefix(count);
    return taken;
  }
  std::string_view rest() { return bytes(text_.size()); }
  bool empty() const { return text_.empty(); }

 private:
  std::string_view text_;
};

}  // namespace

std::string CardMail::text() const {
  return "card " + std::to_string(rank) + " " + std::to_string(size) + "\n" + card;
}

CardMail CardMail::parse(std::string_view text) {
  Reader reader(text);
  CardMail mail;
  reader.expect("card ");
  mail.rank = reader.number(kMostRanks);
  reader.expect(" ");
  mail.size = reader.number(kMostRanks);
  reader.expect("\n");
  mail.card = reader.rest();
  if (mail.card.size() > kMostCard) throw BadRosterMail{};
  return mail;
}

std::string cards_text(const std::vector<std::string>& cards) {
  std::string text = "cards " + std::to_string(cards.size()) + "\n";
  for (const std::string& card : cards) text += std::to_string(card.size()) + "\n" + card;
  return text;
}

std::string refusal_text(const Error& error) {
  std::string head = to_string(error.kind());
  if (const auto* const peer = dynamic_cast<const PeerError*>(&error))
    head.append(" ").append(std::to_string(peer->rank()));
  if (const auto* const timeout = dynamic_cast<const TimeoutError*>(&error))
    for (const int rank : timeout->missing()) head.append(" ").append(std::to_string(rank));
  return head + "\n" + error.what();
}

std::vector<std::string> parse_answer(std::string_view text, int size) {
  Reader reader(text);
  if (reader.skip("cards ")) {
    if (reader.number(kMostRanks) != size) throw BadRosterMail{};
    reader.expect("\n");
    std::vector<std::string> cards;
    for (int rank = 0; rank < size; ++rank) {
      const int length = reader.number(static_cast<int>(kMostCard));
      reader.expect("\n");
      cards.emplace_back(reader.bytes(static_cast<std::size_t>(length)));
    }
    if (!reader.empty()) throw BadRosterMail{};
    return cards;
  }
  if (reader.skip("usage\n")) throw UsageError(one_line(reader.rest()));
  if (reader.skip("system\n")) throw SystemError(one_line(reader.rest()));
  if (reader.skip("peer ")) {
    const int rank = reader.number(kMostRanks);
    reader.expect("\n");
    throw PeerError(rank, one_line(reader.rest()));
  }
  if (reader.skip("timeout")) {
    std::vector<int> missing;
    while (reader.skip(" ")) missing.push_back(reader.number(kMostRanks));
    reader.expect("\n");
    throw TimeoutError(missing, one_line(reader.rest()));
  }
  throw BadRosterMail{};
}

}  // namespace lockstep::net
