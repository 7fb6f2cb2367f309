// A group whose nodes are one engine inside and another across, as an algorithm of two levels sees it:
// `by-node` (comm/algo/by_node.cc). An engine that is composed of two fills it in.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/call/call.h"
#include "comm/call/reach.h"

namespace lockstep {

class Levels {
 public:
  virtual ~Levels() = default;

  virtual const std::vector<std::vector<int>>& members() const = 0;  // the ranks of each node
  virtual int node() const = 0;                                      // this rank's, as an index of members()
  virtual int place() const = 0;                                     // of this rank in its node
  virtual int parts() const = 0;                                     // ranks of the smallest node

  // Where the node's ranks reach each other's memory, the next three work on it.
  virtual bool shares_memory() const = 0;
  virtual bool reaches(const void* data) const = 0;  // whether the node's other ranks reach it
  virtual std::byte* room(std::size_t bytes) = 0;    // that they reach; its contents do not survive the call
  // The node's ranks meet and compare their calls, as for any collective, then `task` works on everybody's
  // buffers, with the divisor that the node knows.
  virtual void inside(const Call& call, const Commons::Task& task) = 0;

  // Anywhere: they meet and compare their calls. The divisor that the node knows.
  virtual double open_inside(const Call& call) = 0;
  // A collective of the node's ranks, whose numbers are places.
  virtual void run_inside(const Call& call) = 0;
  // A collective of the ranks that have this rank's place in their nodes, which are its numbers. For places
  // below parts().
  virtual void run_across(const Call& call) = 0;
};

}  // namespace lockstep
