// Memory for gathered parameters: never more than a budget, used again and again.
//
// On a device pieces are libtorch's memory, since nobody but their owner writes them. A piece that was given
// back goes to who takes it next behind what the stream of who gave it back held.
//
// Pieces are exactly as large as they were asked for, so that what is taken is the same on every worker at
// the same place of its program, whatever it did before: workers decide by it what they gather next.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/device.h"
#include "lockstep/comm/group.h"

namespace lockstep {

// For what is gathered: comm memory on the processor; on a device of libtorch's allocator, which gives it to
// others when what this thread's current stream held is over.
CommMemory gathering_memory(const Group& group, std::size_t bytes, Device device);

class GatheredMemory {
 public:
  explicit GatheredMemory(Group group, Device device = {}) : group_(std::move(group)), device_(device) {}

  void set_budget(std::size_t bytes) { budget_ = bytes; }
  std::size_t budget() const { return budget_; }
  bool has_room(std::size_t bytes) const { return taken_ + bytes <= budget_; }

  // Memory of earlier pieces goes where all together would be more than the budget.
  CommMemory take(std::size_t bytes);
  void give_back(CommMemory memory, std::size_t bytes);

  std::size_t taken() const { return taken_; }  // now
  // At most so much was there at a time, taken or waiting to be.
  std::size_t peak() const { return peak_; }
  void forget_peak() { peak_ = held_; }

 private:
  struct Piece {
    CommMemory memory;
    std::size_t bytes;
    DeviceEvent given_back;  // on the stream of who did
  };
  void let_go_beyond(std::size_t bytes);

  Group group_;
  Device device_;
  std::size_t budget_ = 0;
  std::size_t taken_ = 0;
  std::size_t held_ = 0;  // taken and free
  std::size_t peak_ = 0;
  std::vector<Piece> free_;
};

}  // namespace lockstep
