// Which unit comes after which: seen in the first step, told to all by one worker, and then relied upon, so
// that the next unit's parameters can be asked for in time.
//
// All workers have to ask for the same buckets in the same order, and one that had nothing to do in the first
// step has seen nothing. So nobody goes by what it has seen itself.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep {

class UnitOrder {
 public:
  enum class Pass : unsigned char { forward, backward };

  explicit UnitOrder(std::size_t units);

  // A unit begins. Nothing is learned once all have agreed.
  void begins(Pass pass, int unit);
  // A pass is over: what begins next follows nothing.
  void interrupt() { before_ = kNone; }

  // What follows the unit in such a pass; kNone: nothing, or not always the same, or not known yet.
  static constexpr int kNone = -1;
  int next(Pass pass, int unit) const;
  // Whether a forward ends with it, so that backward begins there.
  bool ends_forward(int unit) const;

  bool agreed() const { return agreed_; }
  // Takes over what rank 0 has seen, for good once that has seen a backward. Collective.
  void agree(const Group& group);

 private:
  static constexpr std::int32_t kSeveral = -2;
  std::int32_t& after(Pass pass, int unit);

  std::size_t units_;
  std::vector<std::int32_t> after_;  // by pass, by unit; then the unit that ends a forward
  Pass pass_ = Pass::forward;
  int before_ = kNone;
  bool agreed_ = false;
};

}  // namespace lockstep
