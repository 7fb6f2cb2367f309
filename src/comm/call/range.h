// How work is cut into parts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace lockstep {

// A run of elements.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t count() const { return end - begin; }
};

// Part i of n, as even as whole cache lines allow: no two parts share a line of an aligned buffer.
inline Range part_of(std::size_t count, int n, int i, std::size_t element_bytes) {
  const std::size_t line = std::max<std::size_t>(1, 64 / element_bytes);
  const std::size_t lines = (count + line - 1) / line;
  const auto cut = [&](int k) {
    return std::min(count, lines * static_cast<std::size_t>(k) / static_cast<std::size_t>(n) * line);
  };
  return {cut(i), cut(i + 1)};
}

// `range` of elements of `bytes` each, as bytes.
inline std::span<std::byte> slice(std::byte* data, Range range, std::size_t bytes) {
  return {data + range.begin * bytes, range.count() * bytes};
}

}  // namespace lockstep
