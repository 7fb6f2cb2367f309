// Opens the exchange of a step: do all ranks mean the same step, and what are its sums divided by?
//
// Every rank that has gradients posts a card; a rank without any posts none and takes the divisor from the
// others. The cards travel as one small all-reduce in front of the buckets. Only a rank without gradients
// waits for it there; the others compare at the end of the exchange, before anybody uses a gradient.
#pragma once

#include <optional>

#include "lockstep/comm/group.h"

namespace lockstep {

struct StepCard {
  double lanes = 0;     // 1: this step is made of lanes
  double step = 0;      // its number, with lanes; 0 without
  double strategy = 0;  // which of the group's strategies exchanges
  double resets = 0;    // how often a step was given up so far
  double divisor = 1;   // of the sums of gradients
};

class StepCards {
 public:
  explicit StepCards(Group group);

  // Begins to tell the others; nothing: this rank has no gradient.
  void post(const std::optional<StepCard>& own);
  // What those who have gradients say; nothing when nobody has any. Waits.
  std::optional<StepCard> said() const;
  // Throws MismatchError, on every rank, naming who says what when they don't all say the same. Collective;
  // behind everything that was begun since post().
  void check() const;
  // Waits for what is under way, and forgets it.
  void abandon() noexcept;

 private:
  [[noreturn]] void explain() const;

  Group group_;
  CommMemory memory_;
  std::optional<StepCard> own_;
  Work work_;
};

}  // namespace lockstep
