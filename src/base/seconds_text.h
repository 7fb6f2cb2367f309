// A span of time for a message: "2 s", "0.25 s".
#pragma once

#include <chrono>
#include <string>

namespace lockstep {

inline std::string seconds_text(std::chrono::milliseconds span) {
  std::string text = std::to_string(span.count() / 1000);
  if (const auto rest = span.count() % 1000; rest != 0) {
    text += '.' + std::to_string(1000 + rest).substr(1);
    text.erase(text.find_last_not_of('0') + 1);
  }
  return text + " s";
}

}  // namespace lockstep
