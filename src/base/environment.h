// This process's environment: all of Lockstep reads it here (base/knobs.h says what the variables mean).
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep {

std::optional<std::string> read_variable(const char* name);         // none: it is not set
std::optional<std::string> read_filled_variable(const char* name);  // none: it is not set, or empty

// "NAME=VALUE" of every one.
std::vector<std::string> all_variables();

// TMPDIR, or /tmp. Not std::filesystem's, which throws where it is not there: most jobs never need it.
std::string temporary_folder();

}  // namespace lockstep
