// Byte sizes as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// "4096", "64K", "25M", "1G", "1.5M", "64KiB", "64KB" (powers of 1024, case ignored): a whole number of
// bytes, at most 2^62. Throws UsageError that shows the accepted forms.
std::uint64_t parse_bytes(std::string_view text);

// "4 KiB", "1.5 MiB", "17 B": at most one decimal.
std::string format_bytes(std::uint64_t bytes);

}  // namespace lockstep
