// What methods remember from step to step, in f32: of one subtree and one parameter ("residual/3/fc.weight"),
// or of one parameter, the same on every rank ("q/fc.weight"). Each rank holds what belongs to the subtrees
// that it carries; collect() brings all of it to everybody, for a checkpoint, or for other workers to go on
// with.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/grad/exchange.h"
#include "lockstep/grad/subtrees.h"

namespace lockstep::compress {

class MemoryBook {
 public:
  using State = Exchange::State;

  MemoryBook() = default;
  MemoryBook(Subtrees subtrees, SubtreeShare own) : subtrees_(subtrees), own_(own) {}

  // From now on there is such a thing, zero at first, of every subtree or of all together. `sizes`: as which
  // it is saved. Where this rank has it, which it does for its own subtrees, the elements stay where they
  // are.
  void declare_by_subtree(const std::string& kind, const std::string& parameter,
                          const std::vector<std::int64_t>& sizes);
  void declare_shared(const std::string& kind, const std::string& parameter,
                      const std::vector<std::int64_t>& sizes);

  std::span<float> of(const std::string& kind, int subtree, const std::string& parameter);
  std::span<float> shared(const std::string& kind, const std::string& parameter);

  const Subtrees& subtrees() const { return subtrees_; }
  bool empty() const { return sizes_.empty(); }

  // Goes on with what `before`, of the same subtrees, has of this book's things; the rest of this rank's is
  // returned.
  State inherit(MemoryBook before);

  // What this rank has, as it is now; and back to it, of the same things.
  State copy() const;
  void restore(const State& copy);

  // Is there nothing in it that this book has not, or has of another size?
  bool knows(const State& state) const;

  // What is in it of parameters alone, and not of a subtree.
  State without_subtrees(const State& state) const;

  // Everything, of all ranks whose own counts. Collective.
  enum class Own : unsigned char { counts, is_left_out };
  State collect(const Group& group, Own own = Own::counts) const;
  // Takes what is this rank's of it. Throws UsageError naming what is missing, not known here, or of another
  // size; nothing has changed then.
  enum class Missing : unsigned char { is_refused, begins_anew };
  void take(const State& state, Missing missing);

 private:
  struct Kind {
    std::vector<std::int64_t> sizes;
    int subtree = 0;  // -1: of all
  };
  void declare(const std::string& key, int subtree, const std::vector<std::int64_t>& sizes);
  bool mine(int subtree) const {
    return subtree < 0 || (subtree >= own_.first && subtree < own_.first + own_.count);
  }

  Subtrees subtrees_;
  SubtreeShare own_;
  std::map<std::string, Kind> sizes_;  // of everything that there is, on all ranks
  State own_entries_;
};

}  // namespace lockstep::compress
