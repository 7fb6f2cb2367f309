// Whoever reads a file that standard output was sent to must not take a part of it for all.
#pragma once

#include <string>

namespace lockstep::cli {

// Writes out what is still waiting. Gives one clause when standard output could not be written, now or
// before; else nothing.
std::string lost_output();

}  // namespace lockstep::cli
