// halving-doubling over the members of a team; see the .cc for the scheme. In two halves, so that what
// comes between them (the division of an average) is the caller's.
#pragma once

#include "comm/algo/team.h"

namespace lockstep {

class HalvingDoubling {
 public:
  // Ranges end at cache lines of elements.
  HalvingDoubling(Team& team, std::size_t count, std::size_t element_bytes);

  // Sums what is at `data`. Afterwards this member holds the whole sum of the range it returns (empty for
  // members of the smaller blocks).
  Range reduce(std::byte* data, const kernel::Reduction& reduction);
  // From everybody's range at `data` to the whole of it, everywhere.
  void gather(std::byte* data);

 private:
  struct Block {
    int first = 0;  // member
    int size = 1;   // a power of two
  };
  Range range_of(int local, int block_size) const;
  Range half(Range whole, int upper) const;
  std::span<std::byte> at(std::byte* data, Range range) const { return slice(data, range, element_); }

  Team& team_;
  std::size_t count_;
  std::size_t element_;        // bytes
  std::size_t line_;           // elements
  std::vector<Block> blocks_;  // largest first
  std::size_t mine_ = 0;       // this member's block
};

}  // namespace lockstep
