// Descriptors 0, 1 and 2 of a program that was started without them (`prog >&-`).
#pragma once

namespace lockstep {

// Opens /dev/null on each of 0, 1 and 2 that is closed. Otherwise the next file, socket or shared memory that is opened
// gets its number, and whatever is printed is written into that. To be called before anything is opened: every program
// of ours does it first thing, and init() does it for programs of others.
void open_standard_descriptors();

}  // namespace lockstep
