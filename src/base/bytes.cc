#include "lockstep/base/bytes.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr char kUnits[] = {'K', 'M', 'G', 'T'};

constexpr auto kMost = std::uint64_t{1} << 62;  // nobody has more, and sums of a few still fit

[[noreturn]] void refuse(std::string_view text) {
  throw UsageError("bad byte size '" + std::string(text) +
                   "'; accepted: a whole number of bytes, such as 4096, 64K, 25M, 1.5G");
}

// The number of bytes of "", "B", "K", "KB", "KiB", …, in any case; 0 for anything else.
std::uint64_t scale_of(std::string_view unit) {
  std::string upper;
  for (const char c : unit) upper += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (upper.empty() || upper == "B") return 1;
  std::uint64_t scale = 1;
  for (const char prefix : kUnits) {
    scale *= 1024;
    if (upper[0] != prefix) continue;
    const std::string_view rest = std::string_view(upper).substr(1);
    return rest.empty() || rest == "B" || rest == "IB" ? scale : 0;
  }
  return 0;
}

}  // namespace

std::uint64_t parse_bytes(std::string_view text) {
  const char* const end = text.data() + text.size();
  std::uint64_t whole = 0;  // exact, where a double would round above 2^53
  const auto [point, error] = std::from_chars(text.data(), end, whole);
  if (error != std::errc()) refuse(text);

  double fraction = 0;
  const char* rest = point;
  if (point != end && *point == '.') {
    const auto [after, bad] = std::from_chars(point, end, fraction, std::chars_format::fixed);
    if (bad != std::errc()) refuse(text);
    rest = after;
  }

  const std::uint64_t scale = scale_of({rest, static_cast<std::size_t>(end - rest)});
  if (scale == 0 || whole > kMost / scale) refuse(text);
  const double part = fraction * static_cast<double>(scale);
  if (part != std::floor(part)) refuse(text);
  return whole * scale + static_cast<std::uint64_t>(part);
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit < std::size(kUnits) - 1) {
    value /= 1024;
    ++unit;
  }
  if (value >= 1023.95 && unit < std::size(kUnits) - 1) {  // would show as 1024.0
    value = 1;
    ++unit;
  }
  char text[32];
  const char* form = value == std::floor(value) ? "%.0f %ciB" : "%.1f %ciB";
  std::snprintf(text, sizeof text, form, value, kUnits[unit]);
  return text;
}

}  // namespace lockstep
