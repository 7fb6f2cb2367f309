// What a worker brings along when it is bound to a group, and whose of it all go on with: rank 0's, since all
// go on with that one's parameters; has it taken no step so far, that of the first of those who have taken
// most.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep::compress {

struct Past {
  std::int64_t bond = 0;  // drawn when a group is bound: whose is the same were bound together last; 0: never
  std::int64_t steps = 0;
  std::int64_t last_step = -1;
  std::int64_t subtrees = 0;               // 0: not bound yet
  std::int64_t begun = 0;                  // of momenta
  std::int64_t most_gathered = 0;          // Carriage::most_gathered
  std::vector<std::int64_t> choices = {};  // of --compress auto, by parameter; empty: none yet
};

struct Agreed {
  Past past = {};
  int whose = 0;          // the rank that it is of
  bool is_own = true;     // this rank was bound together with that one
  std::int64_t bond = 0;  // from now on
};

// Collective.
Agreed agree(const Past& own, const Group& group);

}  // namespace lockstep::compress
