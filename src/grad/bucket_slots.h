// Memory for buckets that exist only while they are filled and exchanged. A bucket takes a slot when its
// first gradient comes, and what its exchange leaves it gives up: the next bucket gets the same memory, which
// is still in cache. So a few buckets' memory carries all of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <limits>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep {

class BucketSlots {
 public:
  // Exchanges that may be under way while another bucket is filled. Fewer would wait for links, more would
  // only wait elsewhere.
  static constexpr std::size_t kUnderWay = 2;

  // As many as need be, since a worker may not wait for the others there for ever: they may need it
  // elsewhere. It does for a while, several times as long as exchanges take, and goes on with more memory
  // where that was in vain; waits in vain take a fiftieth of the time at most.
  static constexpr std::size_t kUnbounded = std::numeric_limits<std::size_t>::max();
  static constexpr std::chrono::milliseconds kPatience{20}, kMostPatience{1000};

  // `under_way`: another number of them. `filled`: of buckets that are filled meanwhile; 0 where each leaves
  // as it is taken.
  BucketSlots(Group group, Device device, std::size_t under_way = kUnderWay, std::size_t filled = 1)
      : group_(std::move(group)), device_(device), under_way_(under_way), filled_(filled) {}

  // At least so many bytes. Waits while `under_way` exchanges are under way; their errors are for who waits
  // for them. Buckets that are filled at the same time get memory each, however many they are.
  CommMemory take(std::size_t bytes);
  // Free again when `exchange` is done.
  void leave(CommMemory slot, Work exchange);

  // Of all slots, taken or free.
  std::size_t bytes() const { return bytes_; }

 private:
  bool bounded() const { return under_way_ != kUnbounded; }
  std::size_t in_a_row() const { return bounded() ? under_way_ : kUnderWay; }  // that nobody waits for
  bool is_over(const Work& exchange);
  void learn(const WorkTiming& timing);
  struct Leaving {
    CommMemory slot;
    Work exchange;
  };

  Group group_;
  Device device_;
  std::size_t under_way_, filled_;
  std::deque<Leaving> leaving_;  // in the order in which their exchanges began, and end
  std::vector<CommMemory> free_;
  std::size_t bytes_ = 0;
  std::size_t slots_ = 0;  // taken or free
  std::chrono::milliseconds patience_ = kPatience;
  std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
  std::chrono::milliseconds in_vain_{0};  // it has waited so long
};

}  // namespace lockstep
