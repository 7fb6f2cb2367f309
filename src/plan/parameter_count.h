// Numbers of parameters as people write them.
#pragma once

#include <string>

namespace lockstep {

// "125000000", "350M", "7.5B", "1T" (powers of 1000, case ignored): a whole number from 1 to 10^15. Throws
// UsageError that begins with `flag` and shows the accepted forms.
double parse_parameter_count(const std::string& flag, const std::string& text);

// "7.5B", "11.17M", "34.5K", "650": at most four digits.
std::string parameter_count_text(double count);

}  // namespace lockstep
