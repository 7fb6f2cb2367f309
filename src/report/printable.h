// Bytes that anybody may have made, as text that does no harm to a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Valid UTF-8, line ends and tabs stay as they are; other control characters and bytes become \x1b.
std::string printable(std::string_view bytes);

}  // namespace lockstep
