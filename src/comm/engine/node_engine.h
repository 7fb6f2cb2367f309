// The engine of several nodes with several ranks each: one engine inside a node (shared memory, TCP), another
// across nodes (TCP, MPI, Gloo). Calls that gain from nodes run by an algorithm of two levels
// (comm/algo/by_node.cc); the others, and sums whose canonical order the nodes cut, on the flat engine over
// all ranks. The flat engine's table of costs decides, as for every other algorithm.
//
// What it needs of the three is Engine, and Composable where they have it. An inside whose ranks share memory
// lends it (Commons).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/algo/algorithm.h"
#include "comm/call/engine.h"
#include "comm/call/levels.h"

namespace lockstep {

// Makes the engine of the ranks that gave the same colour, ordered by key, out of the flat one; null for a
// negative colour. Collective over `flat`.
using AcrossMaker = std::function<std::unique_ptr<Engine>(Engine& flat, int colour, int key,
                                                          const std::string& group, const Call& call)>;

class NodeEngine final : public Engine, private Levels {
 public:
  // `name`: "inside+across"; `flat`: all ranks of the group; `inside`: those of this rank's node, in the same
  // order. Collective. When there is only one node, returns `inside`; when each has one rank, the engine
  // across: `flat` or, where that is of another kind, what `make_across` makes of all ranks.
  static std::unique_ptr<Engine> make(std::string name, std::unique_ptr<Engine> flat,
                                      std::unique_ptr<Engine> inside, AcrossMaker make_across,
                                      std::string group, const Call& call);

  CommMemory allocate(std::size_t bytes, Device device) override { return inside_->allocate(bytes, device); }
  bool reaches(const void* data) const override { return inside_->reaches(data); }
  double expected_seconds(const Call& call) const override;
  PeerView peer(int rank) const override;
  void tell_failure(const Error& error) noexcept override;
  void check(News news) override;
  Composable* composable() override { return nullptr; }  // two levels, not three

 protected:
  void execute(const Call& call) override;
  double meet(const Call& call) override { return flat_->open(call); }
  std::unique_ptr<Engine> divide(int colour, int key, const std::string& name, const Call& call) override;

 private:
  NodeEngine(std::string name, std::unique_ptr<Engine> flat, std::unique_ptr<Engine> inside,
             std::vector<std::vector<int>> members);
  // Makes the engine across, and lets the three know of each other. Collective.
  void compose(AcrossMaker make_across, std::string group, const RankNames& names, const Call& call);
  // Levels
  const std::vector<std::vector<int>>& members() const override { return members_; }
  int node() const override { return static_cast<int>(node_); }
  int place() const override { return place_; }
  int parts() const override { return parts_; }
  bool shares_memory() const override { return commons_ != nullptr; }
  std::byte* room(std::size_t bytes) override;
  void inside(const Call& call, const Commons::Task& task) override;
  double open_inside(const Call& call) override;
  void run_inside(const Call& call) override;
  void run_across(const Call& call) override;

  const Algorithm* choose(const Call& call) const;
  CallShape shape_of(const Call& call) const;
  void run_flat(const Call& call);
  // This rank waits outside its node: ranks of it that see so in their common memory are patient. Elsewhere
  // they hear it in the whole group.
  std::function<void()> idle() const;
  // The j-th ranks of all nodes, of which this rank is one.
  std::vector<int> column() const;
  int place_of(int rank) const;  // in this rank's node; -1: it is on another

  std::unique_ptr<Engine> inside_;
  std::unique_ptr<Engine> across_;  // null on ranks that own no part
  std::unique_ptr<Engine> flat_;
  Commons* commons_;  // of inside_; null: its ranks share no memory
  AcrossMaker make_across_;
  std::vector<std::vector<int>> members_;      // ranks of each node
  std::size_t node_ = 0;                       // this rank's, as an index of members_
  int place_ = 0;                              // in its node
  int parts_ = 1;                              // ranks of the smallest node
  bool by_node_ = true;                        // there is an algorithm of two levels for these nodes
  std::chrono::milliseconds inside_grace_{0};  // of members that wait for one which waits outside
  CommMemory room_;                            // for buffers that peers can't reach
  Scratch scratch_;
};

}  // namespace lockstep
