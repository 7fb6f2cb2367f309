// What the ranks of the fault test give to a call, and whether what they got is right: an element says which
// rank of the group it comes from and, but for a few alike, from which place.
#pragma once

#include <string>
#include <vector>

#include "comm/call/call.h"

namespace lockstep::testing {

// Fills `count` elements with what `rank` gives to such a call.
void give(void* data, std::size_t count, DType dtype, const Call& call, int rank);

// Makes sure that what a call does not write is wrong.
void spoil(void* data, std::size_t bytes);

// Looks at what `rank` of `size` got in `data`; empty when it is right. `call.count` is that of Call.
std::string find_wrong(const void* data, const Call& call, int rank, int size);

}  // namespace lockstep::testing
