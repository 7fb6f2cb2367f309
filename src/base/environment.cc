#include "base/environment.h"

#include <unistd.h>

#include <cstdlib>

namespace lockstep {

std::optional<std::string> read_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::optional<std::string> read_filled_variable(const char* name) {
  std::optional<std::string> value = read_variable(name);
  return value && value->empty() ? std::nullopt : value;
}

std::vector<std::string> all_variables() {
  std::vector<std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) all.emplace_back(*entry);
  return all;
}

std::string temporary_folder() { return read_filled_variable("TMPDIR").value_or("/tmp"); }

}  // namespace lockstep
