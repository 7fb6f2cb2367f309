// What an algorithm is: a name, what it can do and needs, what it costs, and a run. One file each, which is
// all that knows it: engines, the table of costs, the benchmark and the tests go through all_algorithms().
//
// Most see only a channel. Those that say Needs::reach work on memory that all ranks reach, and run where
// there is some; those that say Needs::levels on a group that is composed of two engines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "comm/algo/routes.h"
#include "comm/call/call.h"
#include "comm/call/levels.h"
#include "comm/call/reach.h"
#include "comm/channel/channel.h"

namespace lockstep {

// Private memory that an engine keeps for its algorithms; contents do not survive the call.
class Scratch {
 public:
  std::byte* take(std::size_t bytes);  // aligned to 64 bytes; one block at a time

 private:
  std::vector<std::byte> memory_;
};

// One call on its way through an algorithm. Which of the last three is there follows from Algorithm::needs.
struct Stage {
  const Call& call;
  int me = 0;
  std::span<const int> nodes;  // the node of each rank
  Scratch& scratch;
  const Routes* routes = nullptr;  // null: the plain ones
  Channel* messages = nullptr;     // unless Needs::levels
  Reach* shared = nullptr;         // with Needs::reach
  Levels* composed = nullptr;      // with Needs::levels

  Channel& channel() const { return *messages; }
  Reach& reach() const { return *shared; }
  Levels& levels() const { return *composed; }

  int rank() const { return me; }
  int size() const { return static_cast<int>(nodes.size()); }
  const std::byte* in() const { return static_cast<const std::byte*>(call.in); }
  std::byte* out() const { return static_cast<std::byte*>(call.out); }
  std::size_t element() const { return size_of(call.dtype); }
  kernel::Reduction reduction() const { return {call.dtype, call.op, call.divisor_among(size())}; }
};

// What messages cost between ranks that share no memory; comm/tune/links.h measures it.
class Wires {
 public:
  virtual ~Wires() = default;
  virtual double seconds(int from, int to, double bytes) const = 0;  // with all ranks at work
};

// What a call looks like to the cost model.
struct CallShape {
  Collective what = Collective::all_reduce;
  int ranks = 2;
  std::size_t bytes = 0;         // Call::bytes()
  bool reachable = false;        // all buffers lie in comm memory
  bool messages_only = false;    // the ranks share no memory
  bool pages = false;            // the ranks may read each other's private memory
  bool posts = true;             // inputs may yet be posted with the call
  bool levels = false;           // the group is composed of two engines, inside the nodes and across them
  bool messages_inside = false;  // with levels: inside its nodes ranks share no memory either
  std::span<const int> nodes = {};
  const Wires* wires = nullptr;    // null: not measured
  const Routes* routes = nullptr;  // with wires
};

// What one rank does on the critical path; comm/tune prices it. This is the one place where an algorithm says
// what it costs.
struct Cost {
  double barriers = 0;
  double messages = 0;       // one after the other
  double sent_bytes = 0;     // through the channel; a rank that swaps works on both directions: counted twice
  double copied_bytes = 0;   // read and written in memory
  double reduced_bytes = 0;  // read and written by a reduction
  // How long the messages take on shape.wires, step by step, where the algorithm knows its steps better than
  // `messages` and `sent_bytes` tell; 0: it does not.
  double wire_s = 0;
};

// How long the messages take on `wires`: by the algorithm's own account of its steps; else as if every one
// took the slowest way.
double wire_seconds(const Cost& cost, const Wires& wires, int ranks);

// What an algorithm can't do without.
struct Needs {
  bool reach = false;                           // memory that all ranks reach: it works on Stage::reach
  bool pages = false;                           // it reads private memory too (Reach::read_in)
  bool posts = false;                           // inputs that come with the call (Reach::posted)
  bool levels = false;                          // two engines, inside the nodes and across them (Levels)
  std::size_t at_most_bytes = ~std::size_t{0};  // of one rank's input
};

// The algorithms are constants that are never destroyed: a program that calls exit() may have a group's
// thread inside one of them. Hence the trivial destructor.
class Algorithm {
 public:
  virtual std::string_view name() const = 0;
  // Whether its sums follow the canonical order (always so where nothing is summed).
  virtual bool canonical(std::span<const int> nodes) const = 0;
  virtual bool has(Collective what) const = 0;
  virtual Needs needs() const = 0;
  virtual Cost cost(const CallShape& shape) const = 0;
  virtual void run(Stage& stage) const = 0;

 protected:
  ~Algorithm() = default;
};

// All of them, in the order in which ties are broken: those of builtin.h, then those that were added.
std::span<const Algorithm* const> all_algorithms();
// One more, which lives until the process ends. Before the first group is made, in every process of the job.
// Throws UsageError when there is one of that name. True, for a constant that does it before main.
bool add_algorithm(const Algorithm& algorithm);
// Null when there is none of that name.
const Algorithm* find_algorithm(std::string_view name);

// The slowest of the messages that go from `rank` to `to(rank)` at the same time, one a rank.
template <class To>
double slowest_step(const CallShape& shape, double bytes, To to) {
  double slowest = 0;
  for (int r = 0; r < shape.ranks; ++r)
    if (const int peer = to(r); peer >= 0 && peer < shape.ranks && peer != r)
      slowest = std::max(slowest, shape.wires->seconds(r, peer, bytes));
  return slowest;
}

}  // namespace lockstep
