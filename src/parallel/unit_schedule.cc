#include "parallel/unit_schedule.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <limits>

#include "grad/backward_hooks.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kUnitsAtOnce = 2;  // one that computes, and the next

// On the node that made a unit's output: runs before that node's backward, the unit's first.
class BeginBackward final : public torch::autograd::FunctionPreHook {
 public:
  BeginBackward(std::weak_ptr<UnitKeeper> keeper, std::shared_ptr<void> use)
      : keeper_(std::move(keeper)), use_(std::move(use)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    const auto keeper = keeper_.lock();
    if (!keeper)
      throw UsageError(
          "backward through a unit whose strategy is gone: its parameters went with it; "
          "accepted: backward first");
    keeper->begin_backward(use_);
    return gradients;
  }

 private:
  std::weak_ptr<UnitKeeper> keeper_;
  std::shared_ptr<void> use_;
};

}  // namespace

struct UnitSchedule::Use {
  int unit = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool open = false;  // its backward is under way
  int depth = 0;      // of that backward
};

UnitSchedule::UnitSchedule(std::shared_ptr<GatherLine> line, std::vector<UnitBuckets> units,
                           std::vector<BucketPlace> places, std::size_t budget_bytes)
    : line_(std::move(line)),
      units_(std::move(units)),
      budget_given_(budget_bytes > 0),
      memory_(line_->group(), line_->device()),
      order_(units_.size()) {
  for (BucketPlace& place : places) places_.push_back({std::move(place)});
  std::vector<std::size_t> sizes;
  for (const UnitBuckets& unit : units_) sizes.push_back(bytes_of(unit));
  std::ranges::sort(sizes, std::greater());
  if (!budget_given_)
    for (std::size_t i = 0; i < std::min(kUnitsAtOnce, sizes.size()); ++i) budget_bytes += sizes[i];
  memory_.set_budget(budget_bytes);
  for (const UnitBuckets& unit : units_)
    if (bytes_of(unit) > budget_bytes)
      throw UsageError("gathered parameters may take " + format_bytes(budget_bytes) + ", and unit '" +
                       unit.name + "' alone takes " + format_bytes(bytes_of(unit)) +
                       "; accepted: at least that (gathered_mb), or smaller units");
}

std::size_t UnitSchedule::bytes_of(const UnitBuckets& unit) const {
  std::size_t bytes = 0;
  for (const int b : unit.buckets) bytes += places_[static_cast<std::size_t>(b)].bytes;
  return bytes;
}

void UnitSchedule::ask(int bucket) {
  Place& place = places_[static_cast<std::size_t>(bucket)];
  place.memory = memory_.take(place.bytes);
  if (!whole_) peak_ = std::max(peak_, memory_.peak());
  line_->ask(bucket, place.memory.as<std::byte>());
  place.fill(place.memory.as<std::byte>());
}

// Also what is still on its way; then it is waited for, since its memory goes on to others.
void UnitSchedule::drop(int bucket) {
  Place& place = places_[static_cast<std::size_t>(bucket)];
  if (!place.there()) return;
  line_->wait(bucket);
  place.fill(nullptr);
  memory_.give_back(std::exchange(place.memory, {}), place.bytes);
}

void UnitSchedule::make_room(int unit) {
  const UnitBuckets& wanted = units_[static_cast<std::size_t>(unit)];
  const auto is_wanted = [&](int b) { return std::ranges::count(wanted.buckets, b) > 0; };
  std::size_t bytes = 0;
  for (const int b : wanted.buckets)
    if (!places_[static_cast<std::size_t>(b)].there()) bytes += places_[static_cast<std::size_t>(b)].bytes;
  for (int b = 0; b < static_cast<int>(places_.size()) && !memory_.has_room(bytes); ++b)
    if (places_[static_cast<std::size_t>(b)].holders == 0 && !is_wanted(b)) drop(b);
  if (memory_.has_room(bytes)) return;
  if (budget_given_ && !whole_)
    throw UsageError(
        "gathered parameters may take " + format_bytes(memory_.budget()) + ", and unit '" + wanted.name +
        "' needs " + format_bytes(bytes) + " beside " + format_bytes(memory_.taken()) +
        " of units that it lies in or that backward comes back to; accepted: more (gathered_mb)");
  memory_.set_budget(memory_.taken() + bytes);
}

void UnitSchedule::hold(int unit) {
  make_room(unit);
  const std::vector<int>& buckets = units_[static_cast<std::size_t>(unit)].buckets;
  for (const int b : buckets)
    if (!places_[static_cast<std::size_t>(b)].there()) ask(b);
  for (const int b : buckets) ++places_[static_cast<std::size_t>(b)].holders;
}

void UnitSchedule::let_go(int unit) {
  for (const int b : units_[static_cast<std::size_t>(unit)].buckets)
    if (--places_[static_cast<std::size_t>(b)].holders == 0) drop(b);
}

void UnitSchedule::ask_ahead(UnitOrder::Pass pass, int unit) {
  const int next = order_.next(pass, unit);
  if (next == UnitOrder::kNone || whole_) return;
  for (const int b : units_[static_cast<std::size_t>(next)].buckets) {
    const Place& place = places_[static_cast<std::size_t>(b)];
    if (!place.there() && memory_.has_room(place.bytes)) ask(b);
  }
}

std::shared_ptr<void> UnitSchedule::begin_forward(int unit) {
  order_.begins(UnitOrder::Pass::forward, unit);
  auto use = std::make_shared<Use>(Use{.unit = unit, .begin = ++clock_});
  hold(unit);
  ask_ahead(UnitOrder::Pass::forward, unit);
  for (const int b : units_[static_cast<std::size_t>(unit)].buckets) line_->wait(b);
  return use;
}

void UnitSchedule::end_forward(const std::shared_ptr<void>& given,
                               const std::vector<torch::Tensor>& outputs) {
  Use& use = *static_cast<Use*>(given.get());
  use.end = ++clock_;
  bool has_backward = false;
  for (const torch::Tensor& output : outputs)
    if (output.defined() && output.grad_fn() != nullptr) {
      output.grad_fn()->add_pre_hook(std::make_unique<BeginBackward>(weak_from_this(), given));
      has_backward = true;
    }
  const bool stays = has_backward && order_.ends_forward(use.unit);  // backward begins with it
  for (const int b : units_[static_cast<std::size_t>(use.unit)].buckets)
    if (--places_[static_cast<std::size_t>(b)].holders == 0 && !stays) drop(b);
}

void UnitSchedule::begin_backward(const std::shared_ptr<void>& given) {
  const auto use = std::static_pointer_cast<Use>(given);
  if (use->open) return;  // another of its outputs
  for (const auto& later : std::vector(open_))
    if (later->begin > use->end) close(*later);
  order_.begins(UnitOrder::Pass::backward, use->unit);
  hold(use->unit);
  use->open = true;
  use->depth = backward_depth();
  open_.push_back(use);
  if (std::ranges::count(callbacks_, use->depth) == 0) {
    callbacks_.push_back(use->depth);
    at_end_of_backward([keeper = weak_from_this(), depth = use->depth] {
      if (const auto self = std::static_pointer_cast<UnitSchedule>(keeper.lock())) self->close_deeper(depth);
    });
  }
  ask_ahead(UnitOrder::Pass::backward, use->unit);
  for (const int b : units_[static_cast<std::size_t>(use->unit)].buckets) line_->wait(b);
}

void UnitSchedule::end_backward(const std::shared_ptr<void>& use) { close(*static_cast<Use*>(use.get())); }

void UnitSchedule::close(Use& use) {
  if (!use.open) return;
  use.open = false;
  std::erase_if(open_, [&](const auto& other) { return other.get() == &use; });
  let_go(use.unit);
}

void UnitSchedule::close_deeper(int depth) {
  std::erase_if(callbacks_, [&](int known) { return known >= depth; });
  for (const auto& use : std::vector(open_))
    if (use->depth >= depth) close(*use);
  if (depth == 0) order_.interrupt();
}

void UnitSchedule::forget_uses() {
  for (const auto& use : std::vector(open_)) close(*use);
  callbacks_.clear();
  order_.interrupt();
}

void UnitSchedule::set_whole(bool on) {
  if (on == whole_) return;
  if (on) return hold_all();
  whole_ = false;
  for (int b = 0; b < static_cast<int>(places_.size()); ++b)
    if (--places_[static_cast<std::size_t>(b)].holders == 0) drop(b);
  memory_.forget_peak();
}

// Where a gather fails nothing is held: who asks again is told again, and finds the budget as it was.
void UnitSchedule::hold_all() {
  passes_over();  // from here on all have the same
  wait_over();
  const int buckets = static_cast<int>(places_.size());
  const std::size_t budget = memory_.budget();
  memory_.set_budget(std::numeric_limits<std::size_t>::max());
  whole_ = true;
  int held = 0;
  try {
    for (; held < buckets; ++held) {
      Place& place = places_[static_cast<std::size_t>(held)];
      if (!place.there()) ask(held);
      ++place.holders;
    }
    for (int b = 0; b < buckets; ++b) line_->wait(b);
  } catch (...) {
    while (held > 0) --places_[static_cast<std::size_t>(--held)].holders;
    whole_ = false;
    memory_.set_budget(budget);
    throw;
  }
  memory_.set_budget(budget);
}

void UnitSchedule::bring(int bucket) {
  if (whole_ || bucket == brought_) return;
  if (brought_ == kNoBucket) {
    passes_over();  // from here on all have the same
    wait_over();
  } else {
    drop(std::exchange(brought_, kNoBucket));
  }
  if (bucket == kNoBucket) return;
  ask(bucket);
  line_->wait(bucket);
  brought_ = bucket;  // it is there: where that failed who asks again is told again
}

void UnitSchedule::passes_over() {
  forget_uses();
  for (int b = 0; b < static_cast<int>(places_.size()); ++b)
    if (places_[static_cast<std::size_t>(b)].holders == 0) drop(b);
  brought_ = kNoBucket;  // it went, too
  // Once until wait_over(): the others may have been over since, and would not come a second time.
  if (!std::exchange(serves_, true)) line_->serve();
}

void UnitSchedule::wait_over() {
  serves_ = false;
  line_->wait_over();
  order_.agree(line_->group());
}

}  // namespace lockstep
