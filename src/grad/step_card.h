// Opens the exchange of a step: do all ranks mean the same step, and what are its sums divided by?
//
// Every rank posts a card. A rank without gradients says on it what it knows (which model, perhaps which
// step) and takes the divisor from the others. The cards are gathered in front of the buckets. Only a rank
// without gradients waits for them there; the others compare at the end of the exchange, before anybody uses
// a gradient.
#pragma once

#include <optional>
#include <string_view>

#include "lockstep/comm/group.h"

namespace lockstep {

// A field without a value: this rank has no say in it.
struct StepCard {
  double strategy = 0;               // which of the group's strategies exchanges
  std::optional<double> lanes = {};  // 1: this step is made of lanes, 0: it is not
  // Its number: the lanes', or how many were ended before. Without a say in `lanes`: if there are lanes.
  std::optional<double> step = {};
  std::optional<double> exchange = {};  // without lanes: which of the step, from 0
  std::optional<double> draw = {};      // of the lanes that have that step; as far as a double holds it
  std::optional<double> by_hand = {};   // of lanes of its own, 1: in no loop over them, 0: in one
  double resets = 0;                    // how often a step was given up since the last exchange
  double means_given_up = 0;            // how often behind one, whose update others may have made
  std::optional<double> divisor = {};   // of the sums of gradients; none: this rank has no gradients
  bool has_gradients() const { return divisor.has_value(); }
};

class StepCards {
 public:
  explicit StepCards(Group group);

  // Begins to tell the others. `purpose`: for messages, when they don't come.
  void post(const StepCard& own, std::string_view purpose);
  // What all say together; without gradients when nobody has any. Waits.
  StepCard said() const;
  // Throws MismatchError, on every rank, naming who says what when they don't all say the same. Collective;
  // behind everything that was begun since post().
  void check() const;
  // Waits for what is under way, and forgets it.
  void abandon() noexcept;

 private:
  StepCard card_of_rank(int rank) const;

  Group group_;
  CommMemory memory_;  // the own card, then everybody's
  StepCard own_;
  Work work_;
};

}  // namespace lockstep
