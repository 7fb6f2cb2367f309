// Where those who hand out a worker's lanes (a loader) and those who train with them (a strategy) meet: one
// board a group. A worker that has no lane in a step learns here that the others exchange gradients, so that
// it takes part before its own loop over lanes ends; and that they don't, where they only look at their
// lanes.
//
// In a loop over the lanes of a step in which some worker has none, every worker says a word (an all-reduce
// of a few numbers) before each exchange, which strategy's, and one when its loop ends. Workers without
// lanes, and those who passed over all of theirs, listen until that last word, and serve the others
// meanwhile: they may hold what those compute with. Where all workers have lanes nothing is said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/comm/work.h"

namespace lockstep {

class Group;

// A loop over the lanes of one step.
struct LaneLoop {
  const void* of =
      nullptr;  // who is gone through: tells loops of several loaders apart, whatever their steps
  std::int64_t step = 0;
  std::uint64_t draw = 0;  // LaneInfo's, of all lanes
  bool mine = true;        // this worker has lanes in it
  bool everybodys = true;  // every worker has
  int most = 1;            // lanes of a worker, in any step
  bool left = false;       // by an exception
  // Nobody listens until its end, once it was left: of a failure in it all were told, and it was given up, or
  // all have lanes in it.
  bool told = false;
};

class LaneListener {
 public:
  virtual ~LaneListener() = default;
  // Before a loop begins, on workers without lanes too. Throws, on all alike, where it can't train there.
  virtual void check(const LaneLoop& loop) const = 0;
  // A loop over this worker's lanes begins.
  virtual void lanes_begin() = 0;
  // It has come to its end: what its lanes gathered is exchanged now, unless it has been.
  virtual void lanes_end() = 0;
  // It is over, whatever it gathered, or an exception has left it.
  virtual void lanes_left() noexcept = 0;
  // This worker has no lane in that step, and the others begin to exchange: it takes part with nothing.
  virtual void take_part(const LaneLoop& loop) = 0;
  // It has none in a loop that others go through: from here on they get what they need of it to compute.
  // Throws what an exchange that it took part in failed with, until that is given up: they say no word for
  // it.
  virtual void serve() = 0;
  // Such a loop is over, on this worker and, when this returns, on all. Collective.
  virtual void loop_over() = 0;
  // A loop has come to its end on this worker, whoever has lanes in it.
  virtual void loop_ended(const LaneLoop& loop) noexcept = 0;
  // An exchange of this step has failed, of which every worker is told, and the step is not given up yet.
  virtual bool has_failed() const noexcept = 0;
  // A loop's end has thrown this where nothing may be thrown: whoever asks for gradients next is told. Null:
  // of what all were told is given up.
  virtual void lanes_failed(std::exception_ptr failure) noexcept = 0;
};

// Used by one thread at a time, like its group. Listeners outlive their entry.
class LaneBoard {
 public:
  // Returns the listener's number: the same on all ranks that make their strategies in the same order.
  int add(LaneListener* listener);
  void remove(LaneListener* listener);

  // By who hands out lanes. `end` of a loop that is not under way does nothing; it may exchange gradients.
  // `end_early` does the same and keeps what it throws for the strategies: for all of them what every worker
  // is told, else for the one whose lanes it was. `thrown_out` is for a loop that an
  // exception leaves: its end is still to come. Where every worker was told of that failure no exchange until
  // then is one of its; where it is this worker's own the others still listen. `leave` is for one that is
  // given up: the others hear that it is over.
  void begin(const LaneLoop& loop);
  void end(const Group& group, const void* of);
  void end_early(const Group& group, const void* of) noexcept;
  void thrown_out(const void* of) noexcept;
  void leave(const Group& group, const void* of) noexcept;
  // A step that has failed on every worker is given up.
  void failure_is_over() noexcept;
  // By whoever has failed in it; nobody needs what it was told of that any more.
  void take_back() noexcept;
  // Ends what an exception of this worker's own has left (others may listen until then): before it goes on to
  // what all do behind a loop.
  void end_left(const Group& group);

  // Is a loop over that step's lanes under way on this worker?
  bool goes_through(std::int64_t step, std::uint64_t draw) const;

  // By strategy `number`, before it exchanges.
  void announce(const Group& group, int number);

 private:
  LaneLoop* find(const void* of);
  template <class Condition>
  LaneLoop* innermost(const Condition& condition);
  bool has_failed() const;
  bool close(const void* of, LaneLoop& loop);
  void say(const Group& group, std::int64_t word);
  void listen(const Group& group, const LaneLoop& loop);

  std::vector<std::pair<int, LaneListener*>> listeners_;
  int next_ = 0;
  std::vector<LaneLoop> loops_;                                     // under way, the innermost last
  const LaneListener* ending_ = nullptr;                            // whose lanes end
  bool listens_ = false;                                            // the words are the others'
  std::vector<std::pair<std::vector<std::int64_t>, Work>> on_way_;  // words that have not arrived for sure
};

// Ends a loop over lanes that is left before its end (`break`), when destroyed, unless an exception leaves
// it.
class LaneLoopGuard {
 public:
  LaneLoopGuard(const Group& group, const void* of);
  ~LaneLoopGuard();
  LaneLoopGuard(const LaneLoopGuard&) = delete;
  LaneLoopGuard& operator=(const LaneLoopGuard&) = delete;

 private:
  std::unique_ptr<const Group> group_;
  const void* of_;
  int exceptions_;  // on their way when the loop began
};

}  // namespace lockstep
