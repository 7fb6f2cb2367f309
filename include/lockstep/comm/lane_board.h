// Where those who hand out a worker's lanes (a loader) and those who train with them (a strategy) meet: one
// board a group. A strategy learns here what it can't see by itself: that a loop over lanes has begun, and
// that it is over although this worker had none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

class LaneListener {
 public:
  virtual ~LaneListener() = default;
  // A loop over this worker's lanes of a step begins; it has `count` of them, perhaps none.
  virtual void lanes_begin(std::int64_t step, std::size_t count) = 0;
  // That loop has come to its end.
  virtual void lanes_end(std::int64_t step) = 0;
};

// Used by one thread at a time, like its group. Listeners outlive their entry.
class LaneBoard {
 public:
  // Returns the listener's number: the same on all ranks that make their strategies in the same order.
  int add(LaneListener* listener);
  void remove(LaneListener* listener);
  std::size_t listeners() const { return listeners_.size(); }

  void begin(std::int64_t step, std::size_t count);
  void end(std::int64_t step);

 private:
  std::vector<LaneListener*> listeners_;
  int next_ = 0;
};

}  // namespace lockstep
