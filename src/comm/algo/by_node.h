// The two ways of by-node (by_node.cc), by what the ranks of a node have in common.
#pragma once

#include "comm/algo/algorithm.h"

namespace lockstep {

// A call of one level, which is free to choose its algorithm.
Call part_of_call(const Call& call);
// The second half of a sum: what was added up inside the nodes, across them.
Call sum_across(const Stage& stage, const Call& told, const void* in, void* out, std::size_t count);

// The ranks that the j-th of each node acts for: those at places j, j+L, … of its node, L being the smallest
// node's size. All have as many slots; those of smaller nodes may be empty.
class Column {
 public:
  Column(const Levels& levels, int place);
  std::size_t nodes() const { return members_.size(); }
  std::size_t slots() const { return slots_; }         // a node
  int rank(std::size_t node, std::size_t slot) const;  // -1: empty

 private:
  const std::vector<std::vector<int>>& members_;
  std::size_t parts_;
  std::size_t place_;
  std::size_t slots_ = 0;
};

// Every node has as many ranks.
bool nodes_are_equal(const Levels& levels);

// A node whose ranks reach each other's memory: straight from buffer to buffer.
namespace by_memory {
void all_reduce(Stage& stage);
void reduce_scatter(Stage& stage);
void all_gather(Stage& stage);
void barrier(Stage& stage);
}  // namespace by_memory

// One whose ranks don't: by the node's own collectives. For equal nodes.
namespace by_messages {
void all_reduce(Stage& stage);
void reduce_scatter(Stage& stage);
void all_gather(Stage& stage);
void barrier(Stage& stage);
}  // namespace by_messages

}  // namespace lockstep
