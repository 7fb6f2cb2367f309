// One step's exchange: buckets leave in index order as they become full, and are awaited together.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "grad/gradient_store.h"
#include "grad/step_card.h"
#include "lockstep/comm/group.h"
#include "lockstep/grad/reducer.h"

namespace lockstep {

class StepExchange {
 public:
  // All references outlive it.
  StepExchange(const Group& group, GradientStore& store, const std::vector<NamedTensor>& parameters,
               const ReducerOptions& options);

  // Buckets leave with the sums of their subtrees.
  void cut() { cut_ = true; }

  // Nothing has come yet. Also after the store's layout has changed.
  void begin();

  bool opened() const { return opened_; }
  // Has a bucket left since begin()?
  bool has_left() const { return has_left_; }
  // Opens it with what this rank has to say of the step. A rank without gradients waits here for the others'
  // word; false: nobody has any, and there is nothing to exchange.
  bool open(const StepCard& card);
  // Parameter i's gradient is complete: its bucket leaves if that was the last, as do full ones behind it.
  void ready(std::size_t i);
  // Every bucket that has not left does.
  void flush();
  // Waits for all, then gives every parameter its mean. Throws what an operation threw; MismatchError when
  // the ranks are out of step; UsageError when a parameter had no gradient on a rank that has others and that
  // is not allowed.
  void wait();
  // Waits for what is under way and forgets it, errors too.
  void abandon() noexcept;

  ExchangeLog& log() { return log_; }
  // Did any rank have a gradient for it in the last exchange?
  bool used(std::size_t parameter) const { return used_[parameter] != 0; }
  bool of_lanes() const { return weighted_; }
  // From the next exchange on: is the result finite?
  void watch_overflow(bool on) { watches_ = on; }
  // Was something in the last one's not, on any rank? All are told the same.
  bool overflowed() const { return overflowed_; }
  bool any_used() const { return std::ranges::find(used_, 1) != used_.end(); }

 private:
  void launch();
  void send_counts();
  bool on_device() const { return !store_.device().is_cpu(); }
  // What is not finite may be found too late to go along with counts that leave at once: on a device, or on
  // the thread of another group, where an exchange may end. Which one does nobody says.
  bool counts_wait() const { return watches_; }
  void finish_counts();

  const Group& group_;
  GradientStore& store_;
  const std::vector<NamedTensor>& parameters_;
  const ReducerOptions& options_;
  StepCards cards_;
  // How many ranks have a gradient, one i32 a parameter; behind them how many any, and how many have found
  // one that is not finite.
  CommMemory counts_memory_;
  torch::Tensor device_found_;  // an i32 where the gradients are: one that is not finite was found
  std::vector<char> used_;
  std::vector<int> missing_;  // gradients that each bucket waits for
  ExchangeLog log_;
  std::vector<Work> works_;
  Work counts_;
  bool opened_ = false;
  bool has_left_ = false;
  bool idle_ = false;      // this rank has nothing
  bool lanes_ = false;     // this rank's gradients are sums of lanes
  bool weighted_ = false;  // the step is made of lanes
  bool cut_ = false;       // the exchange has cut the lanes' tree
  double divisor_ = 1;
  std::optional<std::int64_t> step_;  // where it is made of lanes
  bool watches_ = false;
  bool overflowed_ = false;
};

}  // namespace lockstep
