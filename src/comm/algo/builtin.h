// The algorithms of this library, for the list in algorithm.cc and for tests. Nobody else asks for one by
// address: see all_algorithms().
#pragma once

#include "comm/algo/algorithm.h"

namespace lockstep {

extern const Algorithm& kEager;
extern const Algorithm& kDirect;
extern const Algorithm& kTree;
extern const Algorithm& kRing;
extern const Algorithm& kHalvingDoubling;
extern const Algorithm& kHierarchical;
extern const Algorithm& kPairwise;
extern const Algorithm& kDoubling;
extern const Algorithm& kPages;
extern const Algorithm& kByNode;

}  // namespace lockstep
