#include "lockstep/base/bytes.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr char kUnits[] = {'K', 'M', 'G', 'T'};

[[noreturn]] void refuse(std::string_view text) {
  throw UsageError("bad byte size '" + std::string(text) + "'; accepted: 4096, 64K, 25M, 1.5G");
}

}  // namespace

std::uint64_t parse_bytes(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] =
      std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) refuse(text);

  std::string unit;
  for (const char* c = rest; c != end; ++c) unit += static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
  if (unit.size() > 1 && unit.ends_with("IB")) unit.resize(unit.size() - 2);
  else if (unit.ends_with("B")) unit.pop_back();

  double scale = 1;
  if (!unit.empty()) {
    if (unit.size() != 1) refuse(text);
    bool known = false;
    for (char c : kUnits) {
      scale *= 1024;
      if (c == unit[0]) {
        known = true;
        break;
      }
    }
    if (!known) refuse(text);
  }
  const double bytes = number * scale;
  if (!(bytes < 9.2e18) || bytes != std::floor(bytes)) refuse(text);
  return static_cast<std::uint64_t>(bytes);
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes);
  int unit = -1;
  while (value >= 1024 && unit < 3) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  const char* form = value == std::floor(value) ? "%.0f %ciB" : "%.1f %ciB";
  std::snprintf(text, sizeof text, form, value, kUnits[unit]);
  return text;
}

}  // namespace lockstep
