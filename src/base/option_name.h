// How messages call an option that is given as a flag or in a program: --on-nan skip, or on_nan = skip.
#pragma once

#include <string>

namespace lockstep {

// Once, at the start of a program whose options are flags.
void name_options_as_flags();

// The option, with its value where one is given.
std::string option_text(std::string name, const std::string& value = {});

}  // namespace lockstep
