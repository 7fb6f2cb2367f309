// Parameters of which the workers of a machine have one copy between them, in memory that all of them see.
//
// Each worker updates its own part of every block where it lies, so on one machine there is nothing to
// gather. Parts that workers of other machines have updated come once a machine and are written into its
// block by one of its workers, each worker taking its share of them.
//
// On a device it is for workers that are all on the same one, who map memory that one of them has there
// (Group::allocate_shared); what they do to it is ordered by barriers of streams, and no host waits. Workers
// on several GPUs gather instead: each would read the others' parts over the bus, in every forward and
// backward again.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/comm/group.h"
#include "parallel/comm_row.h"

namespace lockstep {

class OneCopy {
 public:
  // Of parameters on `device`. Throws UsageError where no two workers have memory in common. Collective.
  static std::unique_ptr<OneCopy> make(const Group& group, Device device);
  // The same, and null there. Collective.
  static std::unique_ptr<OneCopy> where_possible(const Group& group, Device device);

  // So much will be allocated. All of it before the first is.
  void reserve(std::size_t bytes) { row_.reserve(bytes); }
  // A block for the workers of this machine. Collective.
  CommMemory allocate(std::size_t bytes);
  // Does it lie in such a block, of any OneCopy of this process, that somebody here still holds? What is
  // written there is written for other workers too.
  static bool holds(const void* data);
  // Whether this worker is the one that fills new blocks.
  bool fills() const { return node_.rank() == 0; }
  // How many workers share this machine's copy.
  int workers() const { return node_.size(); }
  bool on_device() const { return device_.kind != Device::Kind::cpu; }
  bool several_machines() const { return node_.size() < group_.size(); }

  // What a worker does to the copy behind this comes after what every worker did to it before. Collective.
  void meet(std::string_view purpose) const;

  // Brings the other machines' parts of a block of `bytes`: every worker has written its own, the rank-th of
  // size() equal ones. `scratch`: as large, this worker's until the Work is done.
  Work bring(std::byte* block, std::size_t bytes, std::byte* scratch, std::string_view purpose) const;

 private:
  OneCopy(Group group, Group node, Device device);

  Group group_;
  Group node_;  // the workers of this machine
  Device device_;
  CommRow row_;
};

}  // namespace lockstep
