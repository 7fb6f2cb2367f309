#include "lockstep/data/loader.h"

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "data/step_maker.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep {

// Threads claim steps in order of their numbers, make them in any order, and put each in its place. At most
// `prefetch` steps wait beside those that are in the threads' hands.
struct Loader::Impl {
  Impl(std::shared_ptr<const Dataset> dataset, int rank, int size, LoaderOptions options_, Group group_)
      : maker(std::move(dataset), rank, size, options_),
        options(options_),
        group(std::move(group_)),
        claimed(options_.first_step),
        wanted(options_.first_step) {
    for (int i = 0; i < options.threads; ++i)
      crew.threads.emplace_back([this] { run(crew.stop.get_token()); });
  }

  ~Impl() {
    if (current && group) group.lane_board()->leave(group, &*current);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  using Made = std::variant<Step, std::exception_ptr>;

  // Told to stop all at once, and then joined: one that still waits may be waiting for another.
  struct Crew {
    Crew() = default;
    ~Crew() { stop.request_stop(); }
    Crew(const Crew&) = delete;
    Crew& operator=(const Crew&) = delete;

    std::stop_source stop;
    std::vector<std::jthread> threads;
  };

  // The next step that nobody makes yet; nothing when there is none, or when it is time to stop.
  std::optional<std::int64_t> claim(const std::stop_token& stop) {
    std::unique_lock hold(mutex);
    const auto allowed = [&] { return failed || claimed < wanted + options.prefetch + options.threads; };
    if (!room.wait(hold, stop, allowed) || stop.stop_requested() || failed || claimed >= maker.steps())
      return std::nullopt;
    return claimed++;
  }

  void put(std::int64_t number, Made made) {
    const std::lock_guard hold(mutex);
    failed = failed || std::holds_alternative<std::exception_ptr>(made);
    ready.emplace(number, std::move(made));
    filled.notify_one();
    if (failed) room.notify_all();
  }

  void run(const std::stop_token& stop) {
    for (;;) {
      std::unique_lock turn(drafting);  // the sampler is for one thread at a time
      const std::optional<std::int64_t> number = claim(stop);
      if (!number) return;
      try {
        StepDraft draft = maker.draft(*number);
        turn.unlock();
        std::optional<Step> step = maker.make(std::move(draft), stop);
        if (!step) return;
        put(*number, std::move(*step));
      } catch (...) {
        put(*number, std::current_exception());
      }
    }
  }

  Step* next() {
    if (current && group) group.lane_board()->end(group, &*current);  // where an exception has left its loop
    current.reset();  // its tensors go back before we wait for others
    if (failure) std::rethrow_exception(failure);
    std::unique_lock hold(mutex);
    if (wanted >= maker.steps()) {
      over = true;
      return nullptr;
    }
    const auto there = [&] { return ready.contains(wanted); };
    if (!there()) {
      const std::int64_t begin = now_ns();
      filled.wait(hold, there);
      waited_ns += now_ns() - begin;
    }
    Made made = std::move(ready.extract(wanted).mapped());
    if (std::holds_alternative<std::exception_ptr>(made)) {
      failure = std::get<std::exception_ptr>(made);
      std::rethrow_exception(failure);
    }
    ++wanted;
    room.notify_one();
    hold.unlock();
    current.emplace(std::get<Step>(std::move(made)));
    current->group = group;
    current->draw = maker.draw();
    if (group)
      for (Lane& lane : current->lanes) {
        lane.draw = maker.draw();
        lane.board = group.lane_board().get();
      }
    return &*current;
  }

  const StepMaker maker;
  const LoaderOptions options;
  const Group group;  // may be empty
  std::optional<Step> current;
  std::exception_ptr failure;  // once next() has met it
  std::int64_t waited_ns = 0;
  bool over = false;  // next() has said that there is no more

  std::mutex drafting;  // taken before `mutex`, and held while its owner waits for room
  std::mutex mutex;     // over what follows
  std::condition_variable_any filled;
  std::condition_variable_any room;
  std::int64_t claimed;  // the next step that nobody makes yet
  std::int64_t wanted;   // the next one that next() gives
  std::map<std::int64_t, Made> ready;
  bool failed = false;  // some step could not be made: none after it is begun

  Crew crew;  // last: it is stopped and joined before anything else goes
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, int rank, int size, LoaderOptions options,
               Group group) {
  if (options.lanes == 0) options.lanes = size;
  impl_ = std::make_unique<Impl>(std::move(dataset), rank, size, options, std::move(group));
}
Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

std::int64_t Loader::steps() const { return impl_->maker.steps(); }
std::int64_t Loader::steps_per_epoch() const { return impl_->maker.steps_per_epoch(); }
Step* Loader::next() { return impl_->next(); }
Loader::Iterator Loader::begin() {
  if (impl_->over)
    throw UsageError(
        "a loader is gone through once, and this one has come to its end; accepted: `.epochs = N` for N "
        "epochs "
        "in one loop");
  return Iterator(this);
}
std::int64_t Loader::waited_ns() const { return impl_->waited_ns; }

Loader loader(std::shared_ptr<const Dataset> dataset, const Group& world, LoaderOptions options) {
  return Loader(std::move(dataset), world.rank(), world.size(), options, world);
}

}  // namespace lockstep
