// What the ranks of one job share on one machine: the arena, and the news of who died. Every group of the
// job (the world and its splits) stands on one session.
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/shm/arena.h"
#include "comm/shm/meeting.h"
#include "comm/shm/watch.h"

namespace lockstep::shm {

class Session {
 public:
  // `nodes[r]`: rank r's node. `cores`: processors that the ranks may run on, together.
  Session(std::shared_ptr<Arena> arena, std::vector<int> nodes, int cores);
  ~Session();

  Arena& arena() const { return *arena_; }
  std::vector<int> nodes_of(const std::vector<int>& ranks) const;  // the node of each of them
  int size() const { return static_cast<int>(nodes_.size()); }
  int cores() const { return cores_; }

  void watch(std::vector<UniqueFd> pidfds);

  // While a group is enrolled, the death of one of its members fails it. `members[i]` is the world rank
  // of the group's rank i. Enrolling with a member already dead fails the group at once.
  using Ticket = std::list<std::pair<Meeting*, std::vector<int>>>::iterator;
  Ticket enrol(Meeting& meeting, std::vector<int> members);
  void withdraw(Ticket ticket);

  // A control block for a sub-group of `members` ranks, out of `rank`'s region. It is given back, and reads
  // as zero again, once every member has left it, which may be long after the maker's own group is gone. A
  // session that ends earlier leaves it alone: peers may be reading what was posted there.
  Control& make_block(int rank, int members);

 private:
  void died(int world_rank);

  std::shared_ptr<Arena> arena_;
  std::vector<int> nodes_;
  int cores_;
  std::mutex mutex_;
  std::list<std::pair<Meeting*, std::vector<int>>> groups_;
  std::vector<int> dead_;
  struct Block {
    Control* control;
    int rank;
  };
  void sweep();  // gives back the blocks that everybody has left

  std::vector<Block> blocks_;
  std::unique_ptr<Watch> watch_;  // last: its thread uses the rest
};

// The arena of a job of `ranks` ranks: its head holds the world's control block.
ArenaShape arena_shape(int ranks, std::uint64_t region_bytes);

}  // namespace lockstep::shm
