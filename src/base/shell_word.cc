#include "base/shell_word.h"

namespace lockstep {

std::string shell_word(const std::string& text) {
  constexpr const char* kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./,:=@%+-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  // Inside single quotes everything is itself but the quote.
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace lockstep
