// Lists in one text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// What stands between the commas, empty or not: "a,,b" has three, "" one.
inline std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> items;
  for (std::size_t begin = 0; begin <= text.size(); begin += items.back().size() + 1)
    items.emplace_back(text.substr(begin, text.find(',', begin) - begin));
  return items;
}

}  // namespace lockstep
