#include "lockstep/comm/lane_board.h"

namespace lockstep {

int LaneBoard::add(LaneListener* listener) {
  listeners_.push_back(listener);
  return next_++;
}

void LaneBoard::remove(LaneListener* listener) { std::erase(listeners_, listener); }

void LaneBoard::begin(std::int64_t step, std::size_t count) {
  for (LaneListener* listener : listeners_) listener->lanes_begin(step, count);
}

void LaneBoard::end(std::int64_t step) {
  for (LaneListener* listener : listeners_) listener->lanes_end(step);
}

}  // namespace lockstep
