// Finding the program to start.
#pragma once

#include <string>

namespace lockstep::launcher {

// The program of that name in the first folder of PATH that has one; empty: none has.
std::string in_path(const std::string& name);

// The file that a shell would start for `name`: itself if it has a slash, else the first of PATH.
// Throws UsageError that says what is wrong: nothing there, a folder, not executable.
std::string find_program(const std::string& name);

}  // namespace lockstep::launcher
