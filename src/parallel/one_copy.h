// Parameters of which the workers of a machine have one copy between them, in memory that all of them see.
//
// Each worker updates its own part of every block where it lies, so on one machine there is nothing to
// gather. Parts that workers of other machines have updated come once a machine and are written into its
// block by one of its workers, each worker taking its share of them.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/comm/group.h"

namespace lockstep {

class OneCopy {
 public:
  // Throws UsageError where no two workers have memory in common. Collective.
  explicit OneCopy(const Group& group);
  // The same, and none there. Collective.
  static std::unique_ptr<OneCopy> where_possible(const Group& group);

  // A block for the workers of this machine. Collective.
  CommMemory allocate(std::size_t bytes) const;
  // Does it lie in such a block, of any OneCopy of this process, that somebody here still holds? What is
  // written there is written for other workers too.
  static bool holds(const void* data);
  // Whether this worker is the one that fills new blocks.
  bool fills() const { return node_.rank() == 0; }
  // How many workers share this machine's copy.
  int workers() const { return node_.size(); }
  bool several_machines() const { return node_.size() < group_.size(); }

  // Brings the other machines' parts of a block of `bytes`: every worker has written its own, the rank-th of
  // size() equal ones. `scratch`: as large, this worker's until the Work is done.
  Work bring(std::byte* block, std::size_t bytes, std::byte* scratch, std::string_view purpose) const;

 private:
  OneCopy(Group group, Group node) : group_(std::move(group)), node_(std::move(node)) {}

  Group group_;
  Group node_;  // the workers of this machine
};

}  // namespace lockstep
