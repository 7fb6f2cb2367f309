#include "lockstep/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep {
namespace {

// Augmentation draws from the lane's stream, apart from what the lane's own generator (dropout) is seeded
// with.
RandomStream augmentation_stream(const LaneInfo& lane) {
  constexpr std::uint64_t kStream = 0x61'75'67'6d'65'6e'74;  // "augment"
  const auto name =
      stream_seed(lane.seed, static_cast<std::uint64_t>(lane.step), static_cast<std::uint64_t>(lane.index));
  return RandomStream(mix_bits(name ^ kStream));
}

std::shared_ptr<const Dataset> checked(std::shared_ptr<const Dataset> dataset) {
  if (dataset == nullptr) throw UsageError("loader without a dataset; accepted: any Dataset");
  return dataset;
}

void check_at_least(const char* option, std::int64_t value, std::int64_t least) {
  if (value < least)
    throw UsageError("loader: " + std::string(option) + " = " + std::to_string(value) +
                     "; accepted: " + std::to_string(least) + " or more");
}

std::int64_t steps_of_run(const LoaderOptions& options, std::int64_t steps_per_epoch) {
  check_at_least("epochs", options.epochs, 0);
  check_at_least("steps", options.steps, 0);
  if (options.epochs == 0 && options.steps == 0)
    throw UsageError("loader: epochs = 0 and steps = 0; accepted: 1 or more of either");
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t of_epochs = options.epochs == 0 || options.epochs > kMost / steps_per_epoch
                                     ? kMost
                                     : options.epochs * steps_per_epoch;
  return options.steps == 0 ? of_epochs : std::min(options.steps, of_epochs);
}

}  // namespace

struct Loader::Impl {
  Impl(std::shared_ptr<const Dataset> dataset_, int rank, int size, LoaderOptions options_, Group group_)
      : dataset(checked(std::move(dataset_))),
        options(options_),
        mine(lanes_of(rank, size, options_.lanes)),
        sampler(dataset->size(), {.lanes = options_.lanes,
                                  .lane_batch = options_.lane_batch,
                                  .seed = options_.seed,
                                  .shuffle = options_.shuffle,
                                  .last_step = options_.last_step}),
        steps(steps_of_run(options_, sampler.steps_per_epoch())),
        group(std::move(group_)) {
    for (int worker = 0; worker < size; ++worker)
      last_first = std::max(last_first, lanes_of(worker, size, options.lanes).first);
    check_at_least("first_step", options.first_step, 0);
    check_at_least("prefetch", options.prefetch, 1);
    thread = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  ~Impl() {
    if (current && group) group.lane_board()->leave(group, &*current);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Made on the thread; touches only what is constant, and the sampler, which is the thread's.
  std::optional<Step> make(std::int64_t number, const std::stop_token& stop) const {
    Step step;
    step.number = number;
    step.epoch = number / sampler.steps_per_epoch();
    step.of_epoch = number % sampler.steps_per_epoch();
    step.ends_epoch = step.of_epoch + 1 == sampler.steps_per_epoch();
    const auto sizes = sampler.lane_sizes(step.of_epoch);
    step.samples = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    const bool equal = sizes.front() == sizes.back();  // they only fall
    step.everybodys = last_first < std::ssize(sizes) && sizes[static_cast<std::size_t>(last_first)] > 0;
    const auto weight_of = [&](std::int64_t samples) {
      return static_cast<double>(samples) * dataset->weight();
    };
    step.total_weight = equal ? options.lanes : weight_of(step.samples);

    for (int index = mine.first; index < mine.first + mine.count; ++index) {
      if (stop.stop_requested()) return std::nullopt;
      Lane lane;
      lane.samples = sizes[static_cast<std::size_t>(index)];
      if (lane.samples == 0) break;
      lane.seed = options.seed;
      lane.step = number;
      lane.index = index;
      lane.weight = equal ? 1 : weight_of(lane.samples);
      lane.total_weight = step.total_weight;
      lane.first = step.lanes.empty();
      lane.last = false;
      RandomStream random = augmentation_stream(lane);
      Batch batch =
          dataset->get(sampler.lane(step.epoch, step.of_epoch, index), options.augment ? &random : nullptr);
      lane.data = std::move(batch.data);
      lane.target = std::move(batch.target);
      step.lanes.push_back(std::move(lane));
    }
    if (!step.lanes.empty()) step.lanes.back().last = true;
    return step;
  }

  void run(const std::stop_token& stop) {
    try {
      for (std::int64_t number = options.first_step; number < steps; ++number) {
        std::optional<Step> step = make(number, stop);
        std::unique_lock hold(mutex);
        if (!step || !room.wait(hold, stop, [&] { return std::ssize(ready) < options.prefetch; })) return;
        ready.push_back(std::move(*step));
        filled.notify_one();
      }
    } catch (...) {
      const std::lock_guard hold(mutex);
      failure = std::current_exception();
    }
    const std::lock_guard hold(mutex);
    done = true;
    filled.notify_one();
  }

  Step* next() {
    if (current && group) group.lane_board()->end(group, &*current);  // a loop that was left early
    current.reset();  // its tensors go back before we wait for others
    std::unique_lock hold(mutex);
    const auto there = [&] { return !ready.empty() || done; };
    if (!there()) {
      const std::int64_t begin = now_ns();
      filled.wait(hold, there);
      waited_ns += now_ns() - begin;
    }
    if (ready.empty()) {
      if (failure) std::rethrow_exception(failure);
      return nullptr;
    }
    current.emplace(std::move(ready.front()));
    current->group = group;
    ready.pop_front();
    room.notify_one();
    return &*current;
  }

  const std::shared_ptr<const Dataset> dataset;
  const LoaderOptions options;
  const LaneRange mine;
  const Sampler sampler;
  const std::int64_t steps;
  int last_first = 0;  // the first lane of the worker whose lanes come last
  const Group group;   // may be empty
  std::optional<Step> current;
  std::int64_t waited_ns = 0;

  std::mutex mutex;  // over what follows
  std::condition_variable_any filled;
  std::condition_variable_any room;
  std::deque<Step> ready;
  std::exception_ptr failure;
  bool done = false;

  std::jthread thread;  // last: it is stopped and joined before anything else goes
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, int rank, int size, LoaderOptions options,
               Group group) {
  if (options.lanes == 0) options.lanes = size;
  impl_ = std::make_unique<Impl>(std::move(dataset), rank, size, options, std::move(group));
}
Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

std::int64_t Loader::steps() const { return impl_->steps; }
std::int64_t Loader::steps_per_epoch() const { return impl_->sampler.steps_per_epoch(); }
Step* Loader::next() { return impl_->next(); }
std::int64_t Loader::waited_ns() const { return impl_->waited_ns; }

Loader loader(std::shared_ptr<const Dataset> dataset, const Group& world, LoaderOptions options) {
  return Loader(std::move(dataset), world.rank(), world.size(), options, world);
}

}  // namespace lockstep
