// When the parameters of a model's units are there: gathered before a unit computes, let go behind it, the
// next unit's on their way meanwhile, and never more of them than a budget.
//
// A *bucket* of parameters is what is gathered at once; a unit has one or more, and two units may have one in
// common (tied weights). A bucket is there while somebody holds it; what nobody holds may still be there,
// because it was asked for ahead, and goes first when room is needed.
//
// The backward of a use begins when the gradient of one of its outputs is known: a hook on that output's
// node. It is over when that of an earlier use begins, since libtorch's engine runs later nodes first, or
// when the whole backward is over. So no hook on parameters is needed, and unused ones change nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/gather_line.h"
#include "parallel/gathered_memory.h"
#include "parallel/unit_order.h"
#include "parallel/unit_points.h"

namespace lockstep {

class UnitSchedule final : public UnitKeeper, public std::enable_shared_from_this<UnitSchedule> {
 public:
  struct UnitBuckets {
    std::string name;
    std::vector<int> buckets;  // numbers of the line's
  };
  struct BucketPlace {
    std::size_t bytes = 0;
    // The parameters in it get this memory; null: they have none any more.
    std::function<void(std::byte* memory)> fill = {};
  };

  // `budget_bytes`: 0: as much as the two largest units take; and more where units need it, as those do that
  // lie in each other.
  UnitSchedule(std::shared_ptr<GatherLine> line, std::vector<UnitBuckets> units,
               std::vector<BucketPlace> places, std::size_t budget_bytes);

  std::shared_ptr<void> begin_forward(int unit) override;
  void end_forward(const std::shared_ptr<void>& use, const std::vector<torch::Tensor>& outputs) override;
  void begin_backward(const std::shared_ptr<void>& use) override;
  void end_backward(const std::shared_ptr<void>& use) override;

  // Everything is there, whatever the budget, until set_whole(false). Collective, between steps.
  void set_whole(bool on);
  // This bucket is there until the next call, alone; kNoBucket: that was all. Collective, between steps.
  static constexpr int kNoBucket = -1;
  void bring(int bucket);
  // This worker's passes are over: lets everything go, and serves the others' gathers from now on. Twice is
  // once, until wait_over().
  void passes_over();
  // Returns when those of all workers are.
  void wait_over();

  std::size_t budget() const { return memory_.budget(); }
  // Of what was gathered at a time, at most, in passes; and of what was gathered for others.
  std::size_t peak_bytes() const { return peak_ + line_->scratch_bytes(); }

 private:
  struct Use;
  struct Place : BucketPlace {
    int holders = 0;
    CommMemory memory = {};
    bool there() const { return memory.data() != nullptr; }  // or on its way
  };

  std::size_t bytes_of(const UnitBuckets& unit) const;
  void hold(int unit);
  void let_go(int unit);
  void ask(int bucket);
  void drop(int bucket);
  void make_room(int unit);
  void hold_all();
  void ask_ahead(UnitOrder::Pass pass, int unit);
  void close(Use& use);
  void close_deeper(int depth);
  void forget_uses();

  std::shared_ptr<GatherLine> line_;
  std::vector<UnitBuckets> units_;
  std::vector<Place> places_;
  bool budget_given_;
  GatheredMemory memory_;
  UnitOrder order_;
  std::int64_t clock_ = 0;                  // counts beginnings and ends of uses
  std::vector<std::shared_ptr<Use>> open_;  // whose backward is under way
  std::vector<int> callbacks_;              // depths of backward passes whose end will be told
  bool whole_ = false;
  bool serves_ = false;  // passes are over, and nobody has waited for the others' yet
  int brought_ = kNoBucket;
  std::size_t peak_ = 0;
};

}  // namespace lockstep
