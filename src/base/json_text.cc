#include "base/json_text.h"

namespace lockstep {

bool nests_deeper(std::string_view text, int most) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > most) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

void expect_shallow(std::string_view text, int most) {
  if (nests_deeper(text, most)) throw UsageError("nested deeper than " + std::to_string(most));
}

}  // namespace lockstep
