// Are links what the cost table says, and have they stayed what they were? Adds up how long the exchanges of
// a step took, on this rank, and tells a period's first steps from its last. Who comes early waits for the
// others, in one step this rank and in the next one that: so ranks are compared step by step.
//
// A step in which this process waited long for a core says nothing of links: the exchange waited with it. It
// counts as not known, and what no rank knows of a step of its own nobody does.
//
// Only the steps at the two ends of a period are looked at: those between do nothing that a forced method's
// do not.
//
// One number is drawn from it, the same for all calls of the group: by what the table's costs are multiplied.
// A period is what lies between two choices, so in one all steps send the same.
//
//   as it is           what was measured in place of what the table says, where they differ by more than
//                      kFactor: all bytes travel then, so the whole of the link is seen
//   compressed         by how much the period's last steps differ from its first, where that is more than
//                      kFactor; or, where the last took more than kFactor times what was expected, what was
//                      measured. Never less than the table because few bytes were fast: shaped links, and
//                      buffers on the way, let those pass that they would not let more pass like
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "compress/link_view.h"

namespace lockstep::compress {

class LinkWatch {
 public:
  static constexpr double kFactor = 2;
  static constexpr std::size_t kSteps = 5;      // at either end of a period
  static constexpr double kMostWaiting = 0.25;  // for a core, of what a step's exchanges took

  explicit LinkWatch(LinkView links) : links_(std::move(links)) {}

  const LinkView& links() const { return links_; }
  // Another period: methods have changed, or workers.
  void restart();
  // In front of a step's first exchange: those of the step before are done. `left`: so many steps later, 0
  // or more, late() is asked for; beyond that nobody looks at this one.
  void begin_step(std::int64_t left);
  void add(const Work& work, double expected_s);

  // Seconds of the period's first and last steps, in order, without its very first; of as many steps on every
  // rank. 0: not known.
  const std::vector<double>& early() const { return early_; }
  const std::deque<double>& late() const { return late_; }

 private:
  double waited_s() const { return links_.waited_for_core ? links_.waited_for_core() : 0; }
  void end_step();

  LinkView links_;
  std::vector<SentBucket> sent_;  // in this step, where it counts
  double waited_s_ = 0;           // for a core, until this step began
  bool has_begun_ = false;        // the period's first step is over, or under way
  bool counts_ = false;           // this step does
  std::vector<double> early_;
  std::deque<double> late_;
};

// The median of those that are known; 0: none is.
double middle(std::vector<double> seconds);

// Of a period, by all ranks: middles of steps, of each of which the least of theirs counts, since a rank that
// came early waited for the others.
struct Period {
  double early_s = 0, late_s = 0;
  double table_s = 0;  // of a step's calls, by the table
  double codec_s = 0;  // of encoding and decoding, as probed; 0: all of it travels as it is
};

// By what the table's costs are multiplied from now on, where it was `scale`.
double rescaled(double scale, const Period& period);

}  // namespace lockstep::compress
