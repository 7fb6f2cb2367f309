// Gathers gradients in buckets and has each bucket reduced as soon as it is full, while backward goes on.
//
//   Reducer reducer(parameters, group, options);
//   loss.backward();         // hooks fill buckets; full ones leave in order; its end waits for all of them
//
// Buckets lie in comm memory; after the exchange every grad() is a view into its bucket. They follow the
// reverse order of registration at first, and after the first exchange the order in which gradients really
// came (rank 0's, broadcast). What happens to a full bucket is an Exchange (exchange.h); one that leaves
// every rank only a part of the result leaves grad() undefined: buckets() and used() tell what is where.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/grad/exchange.h"
#include "lockstep/grad/exchange_log.h"
#include "lockstep/grad/gradient_source.h"

namespace lockstep {

// What travels beside the gradients of a step, on the backward thread.
class BesideGradients {
 public:
  virtual ~BesideGradients() = default;
  // This rank runs no more backward in this step; others may. Comes before all others, but announce().
  virtual void backward_over() = 0;
  // All gradients of the step have come and are under way. `idle`: this rank had none.
  virtual void begin(bool idle) = 0;
  // They have arrived. `overflowed`: and are not finite, so that the step is void.
  virtual void finish(bool overflowed) = 0;
  // Something failed: waits for what begin() started, so that its memory can be used again.
  virtual void abandon() noexcept = 0;
  // Nobody had a gradient; nothing was exchanged.
  virtual void nobody() = 0;
  // An exchange begins on this rank.
  virtual void announce() = 0;
};

struct ReducerOptions {
  std::size_t bucket_bytes = std::size_t{25} << 20;
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  bool find_unused_parameters = true;
  Exchange exchange = all_reduce_exchange();
  ReducePrecision reduce_precision = ReducePrecision::same;
  // The first layout stays, because somebody relies on it. So it does where each rank has only its part.
  bool keep_layout = false;
  // Buckets have memory only while they are filled and exchanged, and this rank's part of each is kept apart.
  // So it is all that is left, also of an exchange that leaves everything.
  bool reuse_buckets = false;
  // One a parameter: those of different units are in different buckets; 0: of none. Empty: there are no
  // units.
  std::vector<int> units = {};
  BesideGradients* beside = nullptr;  // outlives the reducer
  // Something in backward waits for the other ranks (SyncBatchNorm, parameters that are gathered). With
  // reuse_buckets nothing else does then: a rank that waited there for a bucket, which its peers may send
  // only at the end of their backward, would keep them from getting there. Buckets whose exchange goes on
  // take memory of their own instead.
  bool peers_meet_in_backward = false;
  bool measure_lanes = false;  // for lane_squares()
  int strategy = 0;  // which of the group's strategies this is (comm/lane_board.h); the same on every rank
};

class Reducer {
 public:
  Reducer(std::vector<NamedTensor> parameters, Group group, ReducerOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Whether backward exchanges gradients (the default) or only adds them up here.
  void set_sync(bool on);
  bool sync() const;

  // Lanes. begin_lane before each lane's forward; `position` counts this worker's lanes of the step from 0.
  // Gradients are scaled by weight, added up along the tree, and divided by total_weight. `step` is compared
  // between the ranks.
  struct LanePart {
    std::int64_t step = 0;
    int position = 0;
    int index = 0;  // among all lanes
    double weight = 1;
    double total_weight = 1;
    bool last = true;
    std::uint64_t draw = 0;  // LaneInfo's
    bool by_hand = false;    // in no loop over its step's lanes
  };
  // Of which step lanes are: its number is compared with those of lanes that are drawn alike.
  struct LaneStep {
    std::int64_t number = 0;
    std::uint64_t draw = 0;  // LaneInfo's
  };
  void begin_lane(const LanePart& part);
  // After its last backward. Those without sync added up in grad(); what the last one did not take along
  // joins the lane's sum here.
  void end_lane();
  // Has this lane's backward brought a gradient?
  bool lane_has_gradients() const;
  // |gradient|² of each lane of this worker in the step so far, in f64; none without measure_lanes.
  std::vector<double> lane_squares() const;
  // A loop over lanes is under way: until it ends, backward outside of a lane is an error.
  void set_lane_loop(bool on);

  // Ends the step's exchange; begins it first when no backward did. A worker without any gradient in this
  // step takes part with nothing; when that is so everywhere nothing happens. `behind`: the step through
  // whose lanes this worker went without training any, where that is known; others must not be in lanes of
  // another one that are drawn alike.
  void synchronize(std::optional<LaneStep> behind = {});
  // A whole step in which this worker has nothing, whatever was before: one of lanes, where it is known
  // which. Collective.
  void synchronize_idle(std::optional<LaneStep> step = {});
  // Throws what the step's exchange has failed with, until reset().
  void refuse_failed() const;
  bool failed() const noexcept;
  // The means have been used: what comes next belongs to the next step.
  void end_step();
  // Forgets an unfinished step, on every rank.
  void reset();

  const std::vector<NamedTensor>& parameters() const;
  // Of the last exchange, until the next begins.
  const ExchangeLog& log() const;
  ExchangeLog& log();              // for a strategy to add what follows
  std::int64_t exchanges() const;  // so far
  int bucket_of(std::size_t parameter) const;
  // As they are laid out now; with reuse_buckets most have no data.
  std::vector<Bucket> buckets() const;
  // This rank's part of a bucket, flat, as the last exchange has left it; who holds it may read it when the
  // reducer is gone.
  torch::Tensor own_part(int bucket) const;
  // Did any rank have a gradient for it in the last exchange?
  bool used(std::size_t parameter) const;
  // Was it that of a step of lanes? The same on every rank, on one without lanes too.
  bool of_lanes() const;
  // Whether exchanges look if their result is finite; what they found in the last one, the same on every
  // rank.
  void watch_overflow(bool on);
  bool overflowed() const;
  // Memory held for gradients, in bytes: of the buckets, and of the sums of lanes that wait for others.
  std::size_t bucket_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
