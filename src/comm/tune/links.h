// What the links between the nodes of a group cost: α and β of every pair, measured at start, and what
// follows from them. Ranks of one node share its links.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/algo/algorithm.h"
#include "comm/algo/routes.h"
#include "comm/call/engine.h"
#include "comm/channel/wire_channel.h"

namespace lockstep {

struct Link {
  double latency_s = 0;   // α, one way
  double s_per_byte = 0;  // β, both ways at once
};

// What measuring itself may take over slow links, whatever calls have.
inline constexpr std::chrono::milliseconds kLeastToMeasure = std::chrono::seconds(30);

class Links final : public Wires {
 public:
  // `nodes[r]`: rank r's, counted from 0; `table`: node × node, what ranks of one node cost each other on the
  // diagonal.
  Links(std::vector<int> nodes, std::vector<Link> table);

  const Link& between(int a, int b) const;  // ranks
  const Link& of_nodes(int a, int b) const { return table_[static_cast<std::size_t>(a * count_ + b)]; }
  int nodes() const { return count_; }

  // With all ranks of a node at work at once, as in a collective.
  double seconds(int from, int to, double bytes) const override;
  // How many ranks of a node use its link at once when that is not how many of them are in the group.
  void set_sharing(double ranks) { sharing_ = ranks; }
  double sharing() const { return sharing_; }
  // The factor by which the link that changed most became slower or faster, sharing included.
  double largest_change(const Links& before) const;

  // Of a sub-group: `ranks` of this one.
  std::shared_ptr<Links> among(const std::vector<int>& ranks) const;
  // The way that the bytes should go, and one line a choice that differs from the plain one, which says why.
  Routes routes(std::vector<std::string>* reasons) const;
  // For people: a table of both figures.
  std::string describe() const;

 private:
  std::vector<int> node_of_;
  std::vector<Link> table_;
  int count_ = 0;
  double sharing_ = 0;  // 0: as many as there are
};

// Measures every pair of nodes, disjoint pairs at the same time: about a second for 64 nodes, less for few.
// Collective over the channel's group; `engine` runs over the same ranks and hands the result to all. All of
// it has `timeout`, waiting for each other included.
std::shared_ptr<Links> measure_links(Engine& engine, WireChannel& channel, std::chrono::milliseconds timeout);

}  // namespace lockstep
