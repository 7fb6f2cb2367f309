#include "plan/parameter_count.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kCountUnits = "KMBT";
constexpr double kMostParameters = 1e15;
constexpr double kRounding = 1e-12;  // 1.005K is 1004.9999999999999 in a double

}  // namespace

double parse_parameter_count(const std::string& flag, const std::string& text) {
  const auto refuse = [&] {
    throw UsageError(
        fmt::format("{} '{}' is not understood; accepted: a whole number of parameters, such as "
                    "125000000, 350M, 7.5B or 1T (K, M, B, T: 10^3 to 10^12)",
                    flag, text));
  };
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || end - rest > 1) refuse();
  if (rest != end) {
    const std::size_t unit =
        kCountUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(*rest))));
    if (unit == std::string_view::npos) refuse();
    number *= std::pow(1000, unit + 1);
  }
  const double whole = std::round(number);
  if (!(std::abs(number - whole) <= kRounding * number)) refuse();  // a fraction, a negative number, "nan"
  if (!(whole >= 1 && whole <= kMostParameters))
    throw UsageError(fmt::format("{} '{}' is out of range; accepted: 1 to {}", flag, text,
                                 parameter_count_text(kMostParameters)));
  return whole;
}

std::string parameter_count_text(double count) {
  if (count < 1000) return fmt::format("{:.0f}", count);
  std::size_t unit = 0;
  // What would show as 1000 of a unit is 1 of the next.
  for (count /= 1000; count >= 999.95 && unit + 1 < kCountUnits.size(); ++unit) count /= 1000;
  return fmt::format("{:.4g}{}", count, kCountUnits[unit]);
}

}  // namespace lockstep
