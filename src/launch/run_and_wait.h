// A program that this one starts and waits for, or becomes, with its standard streams.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// `words`: the program's file, and its arguments. Its exit status, or 128 + the signal that ended it. Throws
// SystemError where it can't be started.
int run_and_wait(std::vector<std::string> words);
// Is that program from here on. Does not return. Throws likewise.
[[noreturn]] void become(std::vector<std::string> words);

}  // namespace lockstep
