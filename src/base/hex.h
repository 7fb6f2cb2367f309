// Bytes as text: two lower-case hexadecimal digits each.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace lockstep {

inline std::string hex_of(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte b : bytes)
    for (const int shift : {4, 0}) text += "0123456789abcdef"[(std::to_integer<unsigned>(b) >> shift) & 15U];
  return text;
}

}  // namespace lockstep
