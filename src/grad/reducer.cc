#include "lockstep/grad/reducer.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <numeric>

#include "grad/backward_hooks.h"
#include "grad/gradient_store.h"
#include "grad/step_exchange.h"
#include "grad/torch_types.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/lanes.h"

namespace lockstep {
namespace {

std::vector<torch::Tensor> tensors_of(const std::vector<NamedTensor>& parameters) {
  std::vector<torch::Tensor> tensors;
  for (const NamedTensor& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

// As far as a double holds it.
std::optional<double> on_card(std::uint64_t draw) {
  return draw == 0 ? std::nullopt : std::optional(static_cast<double>(draw >> 11));
}

// How many exchanges may be under way while a bucket is filled; none: each bucket keeps its memory.
std::optional<std::size_t> slots_of(const ReducerOptions& options) {
  if (!options.reuse_buckets) return std::nullopt;
  return options.peers_meet_in_backward ? BucketSlots::kUnbounded : BucketSlots::kUnderWay;
}

// Whether a single rank's gradients may stay where they are: in the type in which they are reduced.
bool nothing_alone(const ReducerOptions& options) {
  return options.exchange.nothing_alone && options.exchange.leaves == Exchange::Leaves::everything &&
         options.reduce_precision == ReducePrecision::same;
}

}  // namespace

struct Reducer::Impl {
  // fresh: nothing of this step yet. gathering: gradients have come. reduced: they are means.
  enum class Phase { fresh, gathering, reduced };

  Impl(std::vector<NamedTensor> given, Group group_, ReducerOptions options_)
      : parameters(std::move(given)),
        group(std::move(group_)),
        options(std::move(options_)),
        store(parameters, group, slots_of(options), nothing_alone(options)),
        exchange(group, store, parameters, options),
        came(parameters.size(), 0) {
    for (const NamedTensor& parameter : parameters) {
      if (!float_dtype(parameter.tensor))
        throw UsageError("parameter '" + parameter.name + "' has type " +
                         torch::toString(parameter.tensor.scalar_type()) +
                         "; accepted: Double, Float, Half, BFloat16");
      const Buffer data = buffer_of(parameter.tensor, "parameter '" + parameter.name + "'");
      const bool widened = options.reduce_precision == ReducePrecision::f32 && size_of(data.dtype) == 2;
      shapes.push_back(widened ? ParameterShape{data.count, DType::f32, data.dtype}
                               : ParameterShape{data.count, data.dtype});
      if (!options.units.empty()) shapes.back().unit = options.units[shapes.size() - 1];
    }
    if (options.reuse_buckets) options.exchange.leaves = Exchange::Leaves::own_part;  // of what it leaves
    if (options.measure_lanes) store.measure_lanes();
    if (options.exchange.bind) cut();
    std::vector<int> order(parameters.size());
    std::iota(order.rbegin(), order.rend(), 0);
    set_layout(order);
    // A new one would take along what lies in grad(), and parts don't.
    rebuilt = options.keep_layout || options.exchange.leaves == Exchange::Leaves::own_part;
  }

  void cut();
  void check_cut(const LanePart& lane) const;
  void on_gradient(std::size_t i);
  // A step that has failed throws the same until reset(), on ranks without gradients too: nobody is asked
  // again, and cards and buckets of which nobody knows what they hold are not read. Torn: known only of
  // a backward that brought a gradient outside of those inside of it, which can't tell of its end.
  void refuse_failed() const {
    if (failure) std::rethrow_exception(failure);
    if (torn) refuse_torn();
  }
  [[noreturn]] void refuse_torn() const;
  // Outside of backward: one that was begun must be over.
  void look_for_torn() { torn = torn || under_way; }
  // Inside: the engine must still mean to say so.
  void look_for_torn_inside() { torn = torn || (under_way && pass.expired()); }
  [[noreturn]] void refuse_lost(std::size_t i) const;
  void fold_rest();
  void finish();
  void rebuild();
  void set_layout(std::span<const int> order) {
    store.set_layout(
        plan_buckets(shapes, order, options.first_bucket_bytes, options.bucket_bytes, group.size()));
    exchange.begin();
  }
  void begin_step() {
    phase = Phase::fresh;
    lanes = unused_lanes = under_way = torn = false;
    failure = nullptr;
    store.know_gradients();
    begin_backward();
  }
  void begin_backward() {
    exchange.begin();
    std::fill(came.begin(), came.end(), 0);
    arrival.clear();
    callback_queued = false;
  }
  StepCard card() const {
    StepCard card{.strategy = static_cast<double>(options.strategy),
                  .resets = static_cast<double>(resets),
                  .means_given_up = static_cast<double>(means_given_up)};
    if (phase == Phase::fresh) {
      if (idle_step) {
        card.lanes = 1;
        card.step = static_cast<double>(idle_step->number);
        card.draw = on_card(idle_step->draw);
        if (unused_own_lanes) card.by_hand = part.by_hand ? 1 : 0;
      } else if (behind && behind->draw != 0) {
        card.step = static_cast<double>(behind->number);
        card.draw = on_card(behind->draw);
      }
      return card;
    }
    card.lanes = lanes ? 1 : 0;
    card.step = static_cast<double>(lanes ? part.step : steps);
    if (!lanes) card.exchange = static_cast<double>(exchanges_of_step);
    if (lanes) card.draw = on_card(part.draw);
    if (lanes) card.by_hand = part.by_hand ? 1 : 0;
    card.divisor = lanes ? part.total_weight : group.size();
    return card;
  }
  bool open() {
    if (exchange.opened()) return true;
    if (options.beside != nullptr) options.beside->announce();
    return exchange.open(card());
  }
  void take_part(std::optional<LaneStep> step, bool own_lanes);
  void forget_resets() { resets = means_given_up = 0; }
  bool exchanges_now() const { return sync && (!lanes || part.last); }

  std::vector<NamedTensor> parameters;
  Group group;
  ReducerOptions options;
  std::vector<ParameterShape> shapes;
  GradientStore store;
  StepExchange exchange;
  Subtrees subtrees;  // count 0: the lanes' tree is not cut

  bool sync = true;
  bool lanes = false;         // this step is made of lanes
  bool lane_open = false;     // one of them is under way
  bool lane_reset = false;    // and reset() has ended it
  bool lane_loop = false;     // somebody goes through lanes
  bool unused_lanes = false;  // this step's lanes are over, and brought no gradient
  LanePart part;
  std::optional<LaneStep> idle_step;   // the step that this worker takes part in without gradients
  bool unused_own_lanes = false;       // and `part` is the last of its lanes
  std::optional<LaneStep> behind;      // the step whose lanes it went through before it came here without
  std::exception_ptr failure;          // of this step's exchange, until it is given up
  std::int64_t resets = 0;             // since the last exchange
  std::int64_t means_given_up = 0;     // by those behind one
  std::int64_t steps = 0;              // that were ended
  std::int64_t exchanges_of_step = 0;  // since the last of them
  Phase phase = Phase::fresh;
  std::vector<char> came;    // in this backward (in this lane)
  std::vector<int> arrival;  // in which order
  bool callback_queued = false;
  bool under_way = false;          // a backward has brought gradients, and is not over
  bool torn = false;               // and never will be
  std::weak_ptr<const char> pass;  // lives while the engine has the callback that ends it
  bool rebuilt = false;
  std::int64_t exchanges = 0;
  std::unique_ptr<BackwardHooks> hooks;
};

void Reducer::Impl::cut() {
  subtrees = options.exchange.bind(parameters, options.reduce_precision, group);
  if (subtrees.count == 0) return;
  store.cut(subtrees.span(), subtrees_of(group.rank(), group.size(), subtrees).first);
  exchange.cut();
}

// A lane elsewhere than the exchange believes would be added to another subtree's.
void Reducer::Impl::check_cut(const LanePart& lane) const {
  if (subtrees.count == 0) return;
  const LaneRange own = lanes_of(group.rank(), group.size(), subtrees.lanes);
  if (lane.position < own.count && lane.index == own.first + lane.position) return;
  throw UsageError("lane " + std::to_string(lane.index) + " is number " + std::to_string(lane.position) +
                   " of this worker's, and the exchange '" + options.exchange.name + "' is for " +
                   std::to_string(subtrees.lanes) + " lanes, of which " + group.named(group.rank()) + " of " +
                   std::to_string(group.size()) + " has " + std::to_string(own.count) + " from " +
                   std::to_string(own.first) + " on; accepted: the run's lanes as they are dealt out");
}

void Reducer::Impl::on_gradient(std::size_t i) {
  look_for_torn_inside();
  refuse_failed();
  if (phase == Phase::reduced) {
    if (lanes)
      throw UsageError(
          "backward after the last lane's, whose step's gradients have been exchanged; each lane's is called "
          "inside of its scope (`auto scope = ddp.lane(lane);`), the next step's behind its lanes' "
          "beginning");
    if (unused_lanes)
      throw UsageError(
          "backward behind the loop over its lanes, which have been counted without it; call it for each "
          "lane, inside of its scope (where the loop was to train nothing: end_step(), or zero_grad() of an "
          "optimizer of ours, behind it)");
    if (options.exchange.leaves == Exchange::Leaves::own_part && exchange.any_used())
      throw UsageError(
          "backward after this step's gradients were exchanged: they would be lost, since each rank has only "
          "its part of them; use no_sync() for all backwards of a step but the last, and end the step with "
          "step() or zero_grad() of an optimizer of Lockstep's (torch::optim's find no gradient here)");
    begin_step();
  }
  if (lane_open && !lanes)
    throw UsageError(lane_reset ? "backward in a lane that reset() has ended; let its scope end, then go "
                                  "through the step's lanes again"
                                : "backward in the scope of a lane whose step is over (its gradients were "
                                  "exchanged and used); step() comes behind the loop over the lanes, and the "
                                  "next backward in the next step's");
  if (lane_loop && !lanes && sync)
    throw UsageError(
        "backward in a loop over lanes, but in no lane; begin each with `auto scope = ddp.lane(lane);`");
  if (lanes && !lane_open)
    throw UsageError(
        "backward behind the scope of its lane, which is over and has been counted without it; let "
        "`auto scope = ddp.lane(lane);` live until backward is done");
  if (!lanes && subtrees.count > 0 && subtrees.lanes != group.size())
    throw UsageError("backward outside of a lane, and the exchange '" + options.exchange.name + "' is for " +
                     std::to_string(subtrees.lanes) + " lanes on " + std::to_string(group.size()) +
                     " workers; accepted: lanes, or an exchange for one lane a worker");
  // As if the lane had run no backward: what it computed may be anything, a mean over no samples too.
  if (lanes && part.weight == 0) {
    parameters[i].tensor.mutable_grad() = torch::Tensor();
    return;
  }
  phase = Phase::gathering;
  if (!under_way && backward_depth() == 0) {
    under_way = true;
    auto alive = std::make_shared<const char>();
    pass = alive;
    at_end_of_backward([this, alive = std::move(alive)] { under_way = false; });
  }
  if (!sync && !lanes) return store.adopt(i);
  if (came[i] != 0)
    throw UsageError("parameter '" + parameters[i].name + "' got a gradient twice in one backward pass" +
                     (lanes ? " of a lane" : "") +
                     "; add up its losses and call backward once, or use no_sync() for all but the last "
                     "(after an exception in the middle of a step call reset())");
  if (!sync) return store.check(i);  // it waits in grad() for the lane's others
  came[i] = 1;
  arrival.push_back(static_cast<int>(i));
  if (lanes)
    store.fold(i, part.weight);
  else
    store.adopt(i);
  if (!exchanges_now()) return;
  try {
    open();
    exchange.ready(i);
  } catch (...) {
    forget_resets();  // as in finish(), where ranks without gradients are told the same
    failure = std::current_exception();
    throw;
  }
  // The end of the outermost backward, or of the one that brought the last gradient, whichever this is in.
  if (!callback_queued && (backward_depth() == 0 || arrival.size() == parameters.size())) {
    callback_queued = true;
    at_end_of_backward([this] { finish(); });
  }
}

void Reducer::Impl::refuse_torn() const {
  const std::string what =
      "a backward of this step was ended by an exception, so some of its gradients are missing";
  throw UsageError(
      what + (group.size() > 1 && exchange.opened()
                  ? ", for which the others wait; accepted: a new start from a checkpoint, or, where it "
                    "happened on every worker, reset() on all, then this step again"
                  : "; accepted: reset() on every worker, then this step again"));
}

void Reducer::Impl::refuse_lost(std::size_t i) const {
  throw UsageError(
      "parameter '" + parameters[i].name +
      "' was given another type or device since the model was wrapped (by to(), perhaps there and "
      "back), so its gradients would not be exchanged; accepted: to() first, then the strategy");
}

// What a lane's backwards without exchange brought, and its last one did not take along.
void Reducer::Impl::fold_rest() {
  if (!lanes || phase != Phase::gathering || torn) return;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (came[i] != 0 || !parameters[i].tensor.grad().defined()) continue;
    came[i] = 1;
    arrival.push_back(static_cast<int>(i));
    store.fold(i, part.weight);
  }
}

// All gradients of the step have come: what has not left goes now, then everything is awaited.
void Reducer::Impl::finish() {
  if (failure) std::rethrow_exception(failure);  // of a backward inside of this one
  const bool idle = phase == Phase::fresh;
  try {
    if (options.beside != nullptr) options.beside->backward_over();
    fold_rest();
    if (!open()) {
      if (options.beside != nullptr) options.beside->nobody();
      phase = Phase::reduced;
      forget_resets();  // all have met, and nobody has given up more means than the others
      return;
    }
    exchange.flush();
    if (options.beside != nullptr) options.beside->begin(idle);
    exchange.wait();
    if (options.beside != nullptr) options.beside->finish(exchange.overflowed());
  } catch (...) {
    exchange.abandon();
    if (options.beside != nullptr) options.beside->abandon();
    forget_resets();  // all ranks are told, and may all reset()
    failure = std::current_exception();
    throw;
  }
  phase = Phase::reduced;
  forget_resets();
  ++exchanges;
  ++exchanges_of_step;
  if (!rebuilt) rebuild();
}

void Reducer::Impl::rebuild() {
  rebuilt = true;
  for (int i = static_cast<int>(parameters.size()) - 1; i >= 0; --i)
    if (came[static_cast<std::size_t>(i)] == 0) arrival.push_back(i);
  std::vector<std::int32_t> order(arrival.begin(), arrival.end());
  group.broadcast(buffer(order), 0);
  arrival.assign(order.begin(), order.end());
  set_layout(arrival);
}

Reducer::Reducer(std::vector<NamedTensor> parameters, Group group, ReducerOptions options)
    : impl_(std::make_unique<Impl>(std::move(parameters), std::move(group), std::move(options))) {
  impl_->hooks = std::make_unique<BackwardHooks>(
      tensors_of(impl_->parameters), [impl = impl_.get()](std::size_t i) { impl->on_gradient(i); },
      [impl = impl_.get()](std::size_t i) { impl->refuse_lost(i); });
}

Reducer::~Reducer() {
  impl_->hooks.reset();
  impl_->exchange.abandon();
}

void Reducer::set_sync(bool on) {
  impl_->look_for_torn();
  impl_->sync = on;
}
bool Reducer::sync() const { return impl_->sync; }

void Reducer::begin_lane(const LanePart& part) {
  Impl& impl = *impl_;
  impl.look_for_torn();
  impl.refuse_failed();
  impl.check_cut(part);
  if (part.position == 0) {
    if (impl.phase == Impl::Phase::gathering)
      throw UsageError(
          "a step's first lane begins, but the step before was not ended; call synchronize(), or "
          "reset() after an exception");
    impl.begin_step();
  } else {
    impl.begin_backward();
  }
  impl.lanes = impl.lane_open = true;
  impl.lane_reset = false;
  impl.part = part;
  impl.store.begin_lane(part.position, part.total_weight,
                        part.position == 0 && part.last && part.weight == part.total_weight);
}

void Reducer::end_lane() {
  impl_->lane_open = false;
  impl_->look_for_torn();
  impl_->fold_rest();
}
bool Reducer::lane_has_gradients() const { return impl_->lanes && !impl_->arrival.empty(); }
std::vector<double> Reducer::lane_squares() const { return impl_->store.lane_squares(); }
void Reducer::set_lane_loop(bool on) { impl_->lane_loop = on; }

void Reducer::synchronize(std::optional<LaneStep> behind) {
  Impl& impl = *impl_;
  if (impl.phase == Impl::Phase::reduced) return;
  impl.look_for_torn();
  impl.refuse_failed();
  if (impl.phase == Impl::Phase::fresh) {
    if (const auto lost = impl.hooks->first_lost()) impl.refuse_lost(*lost);
    impl.store.refuse_foreign();
    impl.behind = behind;
    return impl.take_part(impl.lanes ? std::optional(LaneStep{impl.part.step, impl.part.draw}) : std::nullopt,
                          impl.lanes);
  }
  impl.finish();
}

void Reducer::synchronize_idle(std::optional<LaneStep> step) { impl_->take_part(step, false); }

void Reducer::Impl::take_part(std::optional<LaneStep> step, bool own_lanes) {
  look_for_torn();
  refuse_failed();
  const bool of_lanes = lanes || step.has_value();
  begin_step();
  idle_step = step;
  unused_own_lanes = own_lanes;
  store.begin_lane(0, 1);  // as a worker whose lanes are all empty
  finish();
  unused_lanes = of_lanes;
}

void Reducer::refuse_failed() const { impl_->refuse_failed(); }
bool Reducer::failed() const noexcept { return impl_->failure != nullptr; }

void Reducer::end_step() {
  if (impl_->phase != Impl::Phase::reduced) return;
  ++impl_->steps;
  impl_->exchanges_of_step = 0;
  impl_->begin_step();
}

void Reducer::reset() {
  impl_->exchange.abandon();
  // Of means that were there nobody knows whether they were used.
  if (impl_->phase != Impl::Phase::reduced && impl_->exchange.has_left() && impl_->options.exchange.leave_out)
    impl_->options.exchange.leave_out();
  for (const NamedTensor& parameter : impl_->parameters) parameter.tensor.mutable_grad() = torch::Tensor();
  ++impl_->resets;
  if (impl_->phase == Impl::Phase::reduced && impl_->exchange.any_used()) ++impl_->means_given_up;
  impl_->lane_reset = impl_->lane_open;
  impl_->exchanges_of_step = 0;
  impl_->begin_step();
}

const std::vector<NamedTensor>& Reducer::parameters() const { return impl_->parameters; }
const ExchangeLog& Reducer::log() const { return impl_->exchange.log(); }
ExchangeLog& Reducer::log() { return impl_->exchange.log(); }
std::int64_t Reducer::exchanges() const { return impl_->exchanges; }
int Reducer::bucket_of(std::size_t parameter) const {
  return impl_->store.layout().placements.at(parameter).bucket;
}
std::vector<Bucket> Reducer::buckets() const {
  std::vector<Bucket> buckets;
  for (std::size_t b = 0; b < impl_->store.layout().buckets.size(); ++b)
    buckets.push_back(impl_->store.bucket(static_cast<int>(b)));
  return buckets;
}
bool Reducer::used(std::size_t parameter) const { return impl_->exchange.used(parameter); }
bool Reducer::of_lanes() const { return impl_->exchange.of_lanes(); }
void Reducer::watch_overflow(bool on) { impl_->exchange.watch_overflow(on); }
bool Reducer::overflowed() const { return impl_->exchange.overflowed(); }
std::size_t Reducer::bucket_bytes() const { return impl_->store.bytes(); }
torch::Tensor Reducer::own_part(int bucket) const { return impl_->store.own_part(bucket); }

}  // namespace lockstep
