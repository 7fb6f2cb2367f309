#include "report/printable.h"

#include <fmt/format.h>

namespace lockstep {
namespace {

// How many bytes from `at` on are one character in UTF-8; 0: none.
std::size_t character_at(std::string_view bytes, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || at + length > bytes.size()) return 0;
  for (std::size_t i = at + 1; i < at + length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const unsigned char second = byte(at + 1);
  // Too long for what they say, of UTF-16, or beyond the last; and control characters in two bytes.
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F) ||
      (first == 0xC2 && second < 0xA0))
    return 0;
  return length;
}

}  // namespace

std::string printable(std::string_view bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto byte = static_cast<unsigned char>(bytes[at]);
    const bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    const std::size_t length = control ? 0 : character_at(bytes, at);
    if (length == 0)
      text += fmt::format("\\x{:02x}", byte);
    else
      text += bytes.substr(at, length);
    at += length == 0 ? 1 : length;
  }
  return text;
}

}  // namespace lockstep
