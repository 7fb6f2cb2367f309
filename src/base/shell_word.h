// Words of a command that a user may copy.
#pragma once

#include <string>

namespace lockstep {

// `text` as one word for a shell, quoted where it has to be.
std::string shell_word(const std::string& text);

}  // namespace lockstep
