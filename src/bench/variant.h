// One way to run the measured collective: an engine, one of its algorithms, a kind of memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/check.h"
#include "bench/plan.h"
#include "comm/call/engine.h"
#include "lockstep/comm/group.h"

namespace lockstep {

// Where a variant works. all_reduce and broadcast work in place, in `out`.
struct BenchBuffers {
  CommMemory in, out;
};

class Variant {
 public:
  std::string engine, algorithm, memory;

  // Ours, through the front door, as a program calls it.
  Variant(Group group, std::string algorithm_, std::string memory_);
  // A peer's, without the front door: nothing of ours is in its time.
  Variant(std::shared_ptr<Engine> peer, std::string algorithm_);

  // Why this call can't be, or empty.
  std::string refuses(const Expectation& e, const BenchBuffers& buffers) const;
  // Runs it once; root is e.root.
  void run(const Expectation& e, const BenchBuffers& buffers) const;

 private:
  void run_group(const Expectation& e, const BenchBuffers& buffers) const;
  void run_engine(const Expectation& e, const BenchBuffers& buffers) const;

  Group group_;
  std::shared_ptr<Engine> peer_;
};

// Every variant that the plan asks for. Collective over `world`. Throws UsageError for an algorithm that
// none of the engines has.
std::vector<Variant> make_variants(const BenchPlan& plan, const Group& world);

// Memory for one size: filled with the rank's input by load_input.
BenchBuffers make_buffers(const Group& world, const std::string& memory, const Expectation& e);
void load_input(const BenchBuffers& buffers, const Expectation& e);
// Writes the whole input again, quickly and with no regard to its values.
void rewrite_input(const BenchBuffers& buffers, const Expectation& e);

}  // namespace lockstep
