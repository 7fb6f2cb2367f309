#include "lockstep/parallel/replicated.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <optional>
#include <unordered_set>

#include "grad/bucket_size.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/lane_board.h"
#include "lockstep/parallel/construction.h"
#include "parallel/buffers.h"
#include "parallel/module_tensors.h"
#include "parallel/parameter_units.h"
#include "parallel/replicas.h"
#include "parallel/sync_norms.h"
#include "parallel/unit_parts.h"

namespace lockstep {
namespace {

// Exchanges between two looks for parameters that nobody exchanges; the first ones look each time.
constexpr std::int64_t kLookEvery = 16;

std::size_t megabytes(double mb, const char* name) {
  if (!(mb > 0) || mb > 1e6)
    throw UsageError(std::string(name) + " = " + std::to_string(mb) + "; accepted: above 0, at most 1000000");
  return static_cast<std::size_t>(mb * (1 << 20));
}

}  // namespace

// The lane under way, and what goes with the gradients of a step: buffers, and the looks at whether all is
// well.
struct Replicated::Lanes final : BesideGradients, LaneListener {
  Lanes(Replicated& owner_, const Group& group)
      : owner(owner_),
        norms(owner_.module_, group, owner_.lanes_ ? &owner_.lanes_->norms : nullptr),
        buffers(*owner_.module_, group),
        frozen(frozen_in(*owner_.module_)),
        names(names_of(everything_in(*owner_.module_))),
        board(group.lane_board()),
        number(board->add(this)) {}
  ~Lanes() override { board->remove(this); }
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // The open lane's buffers join the sum, once.
  void gather() {
    if (!open || gathered) return;
    gathered = true;
    buffers.end_lane(position, info.weight, owner.reducer_->lane_has_gradients());
  }

  // What went wrong at the end of a lane, where nothing may be thrown.
  void rethrow() {
    if (failure) std::rethrow_exception(failure);
  }

  void backward_over() override {
    if (owner.traits_.units) owner.traits_.units->passes_over();
  }
  void begin(bool idle) override {
    rethrow();
    refuse_unfrozen(owner.traits_.name, frozen);
    if (!in_step) return buffers.exchange_plain(!idle);
    gather();
    buffers.exchange_lanes();
  }
  void finish(bool overflowed) override {
    owner.wait_for_passes();
    if (!overflowed) {
      buffers.finish();
    } else if (owner.reducer_->of_lanes()) {
      buffers.abandon();
      restore();
    } else {
      buffers.finish_void();
    }
    ++exchanges;
    refuse_unread();
    if (exchanges <= kLookEvery || exchanges % kLookEvery == 0)
      refuse_unknown(owner.traits_.name, *owner.module_);
    if (check_due()) owner.check_replicas();
    step_is_over();  // last: one that fails is not over until it is given up
  }
  // Our optimizers ask for slices when they are made.
  void refuse_unread() const {
    if (exchanges < 2 || owner.slices_read_ || owner.traits_.exchange.leaves != Exchange::Leaves::own_part)
      return;
    throw UsageError(owner.traits_.name + ": gradients were exchanged " + std::to_string(exchanges) +
                     " times and nobody reads slices(), so nothing is trained: grad() is undefined here, and "
                     "torch::optim's optimizers find no gradient; accepted: lockstep's own (SGD, Adam, "
                     "AdamW, LARS, LAMB)");
  }
  void abandon() noexcept override {
    try {
      owner.wait_for_passes();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the gathers keep their failure
    }
    buffers.abandon();
  }
  // As the step found them.
  void restore() {
    if (in_step)
      buffers.restore();
    else
      buffers.restore_untouched();
  }
  void nobody() override {
    owner.wait_for_passes();
    step_is_over();
    restore();
  }
  void step_is_over() {
    pending = taking_part = false;
    forget_loops();
    if (in_step) exchanged_step = info.step;
  }

  void announce() override { board->announce(owner.group_, number); }

  void check(const LaneLoop& loop) const override { norms.check(loop); }
  void lanes_begin() override {
    rethrow_of_loop();
    owner.reducer_->set_lane_loop(true);
    exchanged_step.reset();
    if (!pending) in_step = false;  // until one of its lanes is begun
  }
  // Where the last lane ran no backward its exchange is still to come. Whoever reads gradients behind the
  // loop finds the means; under no_sync() nobody does, until somebody asks for them.
  void lanes_end() override {
    owner.reducer_->set_lane_loop(false);
    if (pending && owner.reducer_->sync()) owner.reducer_->synchronize();
  }
  void lanes_failed(std::exception_ptr its_failure) noexcept override {
    heard = false;
    loop_failure = std::move(its_failure);
  }
  bool has_failed() const noexcept override { return owner.reducer_->failed(); }
  void rethrow_of_loop() {
    if (!loop_failure) return;
    heard = true;
    std::rethrow_exception(loop_failure);
  }
  void lanes_left() noexcept override { owner.reducer_->set_lane_loop(false); }
  void take_part(const LaneLoop& loop) override {
    taking_part = true;
    if (pending) return owner.reducer_->synchronize();  // its lanes waited under no_sync()
    in_step = false;
    owner.reducer_->synchronize_idle(step_of(loop));
  }
  void serve() override {
    if (taking_part) owner.reducer_->refuse_failed();
    if (owner.traits_.units) owner.traits_.units->passes_over();
  }
  void loop_over() override { owner.meet(); }
  // Of several nobody knows which one is meant, nor whether one that was left is over only now: its loader's
  // next step ends it too.
  void loop_ended(const LaneLoop& loop) noexcept override {
    loops_ended += loop.left ? 2 : 1;
    behind = loops_ended == 1 ? std::optional(step_of(loop)) : std::nullopt;
  }
  static Reducer::LaneStep step_of(const LaneLoop& loop) { return {.number = loop.step, .draw = loop.draw}; }
  void forget_loops() {
    loops_ended = 0;
    behind.reset();
  }

  // Soon after the start, and then regularly: the first steps show most mistakes.
  bool check_due() const {
    const std::int64_t every = owner.options_.check_replicas_every;
    if (every == 0) return false;
    return exchanges % every == 0 ||
           (exchanges > 1 && exchanges < every && std::has_single_bit(static_cast<std::uint64_t>(exchanges)));
  }

  Replicated& owner;
  SyncNorms norms;
  BufferAverager buffers;
  std::vector<NamedTensor> frozen;
  std::vector<std::string> names;  // of parameters and buffers
  std::shared_ptr<LaneBoard> board;
  int number;
  bool open = false;         // a scope lives
  bool in_step = false;      // this step is made of lanes
  bool pending = false;      // lanes were begun, and not exchanged yet
  bool taking_part = false;  // in others' exchange, which is not over
  bool gathered = false;     // the open lane's buffers are in the sum
  int position = 0;          // of the open lane among this worker's
  LaneInfo info;
  std::exception_ptr failure;                  // of a lane's end
  std::exception_ptr loop_failure;             // of the end of a loop that was left early
  bool heard = false;                          // by the program, which asked for gradients behind it
  std::optional<std::int64_t> exchanged_step;  // of lanes, until the next begins
  int loops_ended = 0;                         // over lanes, since a step was ended or exchanged
  std::optional<Reducer::LaneStep> behind;     // the step of the only one of them
  std::int64_t exchanges = 0;
};

Replicated::Replicated(Traits traits, const ModuleRef& module, Group group, StrategyOptions options)
    : traits_(std::move(traits)), module_(module.pointer()), options_(std::move(options)) {
  if (module_ == nullptr) throw UsageError(traits_.name + " of no module");
  if (options_.exchange && options_.hook)
    throw UsageError(traits_.name + ": options `exchange` and `hook` are both given; accepted: one of them");
  if ((options_.exchange || options_.hook) &&
      (!options_.algorithm.empty() || options_.order != Order::canonical))
    throw UsageError(traits_.name +
                     ": options `algorithm` and `order` are of the strategy's own exchange and "
                     "change nothing beside `" +
                     (options_.hook ? "hook" : "exchange") + "`; accepted: without them");
  const Exchange::Leaves wanted = traits_.exchange.leaves;
  if (options_.exchange) traits_.exchange = options_.exchange(wanted);
  if (options_.hook) traits_.exchange = {.name = "hook", .run = options_.hook};
  // Whatever it leaves in the bucket: that goes on to the next one, and the own part is kept.
  if (traits_.reuse_buckets) traits_.exchange.leaves = Exchange::Leaves::own_part;
  if (!traits_.exchange.run)
    throw UsageError(
        traits_.name + ": the exchange '" + traits_.exchange.name +
        "' has no `run`; accepted: a function that begins a bucket's exchange and returns its Work");
  if (wanted == Exchange::Leaves::everything && traits_.exchange.leaves != wanted)
    throw UsageError(traits_.name + " updates whole parameters, and the exchange '" + traits_.exchange.name +
                     "' leaves each rank a part of the gradients; accepted: one that leaves everything");
  if (options_.check_replicas_every < 0)
    throw UsageError("check_replicas_every = " + std::to_string(options_.check_replicas_every) +
                     "; accepted: 0 (never) or more");
  bind(std::move(group));
}

// What it failed with behind a loop that was left early stops the others until the program has heard of it.
Replicated::~Replicated() {
  if (!lanes_ || !lanes_->has_failed()) return;
  if (lanes_->heard)
    lanes_->board->take_back();
  else
    lanes_->board->failure_is_over();
}

void Replicated::bind(Group group) {
  // Those that optimizers keep something of; what came later is trained by another strategy, or by nobody.
  std::vector<NamedTensor> parameters = reducer_ ? reducer_->parameters() : trained_in(*module_);
  if (reducer_) {
    refuse_gone(traits_.name, *module_, parameters);
    refuse_unfrozen(traits_.name, lanes_->frozen);
    refuse_unknown(traits_.name, *module_);
    reset();  // nothing of the old group's is under way any more
  }
  const CutUnits cut(*module_);
  traits_.takes_parts ? cut.check(group) : cut.join();
  leave_one_copy(parameters);
  std::vector<NamedTensor> all = everything_in(*module_);
  check_form(group, all);
  if (!cut.empty())  // what is in parts was compared when it was cut
    std::erase_if(all, [](const NamedTensor& tensor) { return !has_memory(tensor.tensor); });
  compare_threads(group, at::get_num_threads());
  {
    const torch::NoGradGuard no_grad;
    broadcast_all(group, all);
  }
  const std::vector<int> units =
      traits_.units ? traits_.units->lay_out(*module_, parameters) : std::vector<int>();
  const double cap_mb = options_.bucket_cap_mb != 0
                            ? options_.bucket_cap_mb
                            : bucket_mb_for(group, options_.algorithm, options_.order);
  auto lanes = std::make_unique<Lanes>(*this, group);
  auto reducer = std::make_unique<Reducer>(
      std::move(parameters), group,
      ReducerOptions{.bucket_bytes = megabytes(cap_mb, "bucket_cap_mb"),
                     .first_bucket_bytes = megabytes(options_.first_bucket_mb, "first_bucket_mb"),
                     .find_unused_parameters = options_.find_unused_parameters,
                     .exchange = traits_.exchange,
                     .reduce_precision = options_.reduce_precision,
                     .keep_layout = traits_.keep_layout,
                     .reuse_buckets = traits_.reuse_buckets,
                     .units = units,
                     .beside = lanes.get(),
                     .peers_meet_in_backward = !lanes->norms.empty() || traits_.units != nullptr,
                     .measure_lanes = options_.measure_lanes,
                     .strategy = lanes->number});
  reducer->watch_overflow(overflow_watchers_ > 0);
  // All is there: what failed before has left the old ones in place.
  lanes->norms.join();
  reducer_ = std::move(reducer);
  lanes_ = std::move(lanes);
  group_ = std::move(group);
  bucket_cap_mb_ = cap_mb;
}

void Replicated::begin_lane(const LaneInfo& info) {
  Lanes& lanes = *lanes_;
  if (lanes.open) throw UsageError("a lane begins inside another; end its scope first");
  if (!(info.weight >= 0) || !(info.total_weight >= info.weight))
    throw UsageError("lane " + std::to_string(info.index) + " of step " + std::to_string(info.step) +
                     " has weight " + std::to_string(info.weight) + " of " +
                     std::to_string(info.total_weight) + "; accepted: 0 or more, a part of the total");
  if (info.board != nullptr && info.board != lanes.board.get())
    throw UsageError(
        "lane " + std::to_string(info.index) + " of step " + std::to_string(info.step) +
        " is of a loader of another group than the " + traits_.name +
        ", which then does not hear when the step's lanes are over; accepted: the same group for "
        "both");
  lanes.norms.check(info);
  if (info.first) lanes.exchanged_step.reset();
  if (lanes.exchanged_step == info.step)
    throw UsageError("lane " + std::to_string(info.index) + " of step " + std::to_string(info.step) +
                     " begins, but the gradients of its step were exchanged before its last lane (by step(), "
                     "synchronize() "
                     "or clip_grad_norm_ between them); accepted: these behind the loop over the lanes");
  const bool goes_on = !info.first && lanes.pending && lanes.info.step == info.step;
  if (!info.first && !goes_on && info.position == 0)
    throw UsageError(
        "lane " + std::to_string(info.index) + " of step " + std::to_string(info.step) +
        " is not this worker's first one, which was not begun; accepted: `first` for the lane that "
        "begins a step, or the `position` of each");
  int position = goes_on ? lanes.position + 1 : 0;
  // Who passes over a lane before its scope leaves it out as who runs no backward inside of it: it keeps its
  // place in the sum.
  for (; position < info.position; ++position) {
    LaneInfo left_out = info;
    left_out.index = info.index - (info.position - position);
    left_out.weight = 0;
    left_out.last = false;
    open_lane(left_out, position);
    end_lane();
  }
  open_lane(info, position);
}

void Replicated::open_lane(const LaneInfo& info, int position) {
  Lanes& lanes = *lanes_;
  if (position > 0) lanes.rethrow();
  reducer_->begin_lane({.step = info.step,
                        .position = position,
                        .index = info.index,
                        .weight = info.weight,
                        .total_weight = info.total_weight,
                        .last = info.last,
                        .draw = info.draw,
                        .by_hand = !lanes.board->goes_through(info.step, info.draw)});
  lanes.open = lanes.in_step = lanes.pending = true;
  lanes.gathered = false;
  lanes.failure = nullptr;
  lanes.position = position;
  lanes.info = info;
  lanes.norms.weigh(info.weight);
  lanes.buffers.begin_lane(position);
}

void Replicated::end_lane() noexcept {
  Lanes& lanes = *lanes_;
  try {
    reducer_->end_lane();
    lanes.gather();
  } catch (...) {  // the step's next lane, or its exchange, throws it
    lanes.failure = std::current_exception();
  }
  lanes.norms.weigh(1);
  lanes.open = false;
}

std::vector<NamedTensor> Replicated::parameters() const { return reducer_->parameters(); }

void Replicated::synchronize() {
  lanes_->rethrow_of_loop();
  reducer_->refuse_failed();
  lanes_->board->end_left(group_);
  try {
    reducer_->synchronize(lanes_->behind);
  } catch (...) {  // without lanes too it says so again in its next loop
    lanes_->taking_part = lanes_->has_failed();
    throw;
  }
}

void Replicated::watch_overflow(bool on) {
  overflow_watchers_ = std::max(0, overflow_watchers_ + (on ? 1 : -1));  // off twice is off
  reducer_->watch_overflow(overflow_watchers_ > 0);
}

bool Replicated::overflowed() const { return reducer_->overflowed(); }

void Replicated::end_step() {
  reducer_->end_step();
  lanes_->forget_loops();
  if (!lanes_->pending) lanes_->in_step = false;
}

void Replicated::reset() {
  if (traits_.units) try {
      meet();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the gathers keep their failure
    }
  if (lanes_->has_failed()) lanes_->board->take_back();
  reducer_->reset();
  lanes_->buffers.abandon();
  lanes_->restore();
  lanes_->norms.weigh(1);
  lanes_->in_step = lanes_->open = lanes_->pending = lanes_->taking_part = false;
  lanes_->failure = lanes_->loop_failure = nullptr;
  lanes_->exchanged_step.reset();
  lanes_->forget_loops();
  reducer_->set_lane_loop(false);
}

// Of what the model had when it was wrapped: later ones (a table made in the first forward) are their rank's
// own.
void Replicated::check_replicas() {
  std::vector<NamedTensor> now = everything_in(*module_);
  if (traits_.units) std::erase_if(now, [&](const NamedTensor& t) { return traits_.units->holds(t.tensor); });
  std::vector<NamedTensor> known;
  for (const std::string& name : lanes_->names) {
    const auto found =
        std::find_if(now.begin(), now.end(), [&](const NamedTensor& t) { return t.name == name; });
    known.push_back(found != now.end() ? *found : NamedTensor{name, torch::empty({0})});
  }
  check_bits(group_, known);
}

const ExchangeLog& Replicated::last_exchange() const { return reducer_->log(); }
int Replicated::bucket_of(std::size_t i) const { return reducer_->bucket_of(i); }
std::size_t Replicated::parameter_bytes() const {
  std::size_t bytes = 0;
  std::unordered_set<const void*> seen;  // tied weights once
  for (const torch::Tensor& parameter : module_->parameters())
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) bytes += parameter.nbytes();
  return bytes;
}
std::size_t Replicated::gradient_bytes() const { return reducer_->bucket_bytes(); }
std::vector<double> Replicated::lane_squares() const { return reducer_->lane_squares(); }

bool Replicated::set_sync(bool on) {
  const bool before = reducer_->sync();
  reducer_->set_sync(on);
  return before;
}

}  // namespace lockstep
