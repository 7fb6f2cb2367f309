#include "base/option_name.h"

#include <algorithm>
#include <atomic>

namespace lockstep {
namespace {

std::atomic<bool> as_flags = false;

}  // namespace

void name_options_as_flags() { as_flags = true; }

std::string option_text(std::string name, const std::string& value) {
  if (!as_flags) return value.empty() ? name : name + " = " + value;
  std::ranges::replace(name, '_', '-');
  return "--" + name + (value.empty() ? "" : " " + value);
}

}  // namespace lockstep
