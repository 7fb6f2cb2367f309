#include <algorithm>
#include <atomic>
#include <deque>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

#include "base/seconds_text.h"
#include "comm/call/call.h"
#include "comm/world/work_state.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

// What is ready to run on this thread, while one of them runs: null otherwise. A list instead of calls from
// within calls, so that a long chain takes no more stack than a short one.
thread_local std::deque<std::function<void()>>* ready = nullptr;
thread_local std::uint64_t ran = 0;

void run_or_line_up(std::deque<std::function<void()>> list) {
  if (ready != nullptr) {
    std::move(list.begin(), list.end(), std::back_inserter(*ready));
    return;
  }
  ready = &list;
  while (!list.empty()) {
    ++ran;
    list.front()();
    const std::function<void()> spent = std::move(list.front());  // what it holds may line up more as it goes
    list.pop_front();
  }
  ready = nullptr;
}

WorkTiming joined(WorkTiming all, const WorkTiming& one) {
  const auto earlier = [](std::int64_t a, std::int64_t b) {
    return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b);
  };
  all.begin_ns = earlier(all.begin_ns, one.begin_ns);
  all.running_ns = earlier(all.running_ns, one.running_ns);
  all.end_ns = std::max(all.end_ns, one.end_ns);
  if (all.algorithm != one.algorithm) all.algorithm.clear();
  return all;
}

[[noreturn]] void refuse_to_wait() {
  throw UsageError(
      "wait() for what is not done, inside a function given to then() or on_done(): nothing may wait "
      "there, the group's own thread runs it; accepted: then() on that work");
}

// What this thread's current streams are given from now on comes after them.
void order_after(const std::vector<DeviceEnd>& ends) {
  for (const DeviceEnd& end : ends) {
    DeviceRuntime& runtime = runtime_of(end.event.device);
    runtime.wait(runtime.current_stream(end.event.device.index), end.event);
  }
}

// When the first began and the last ended, as their devices know it; none: one does not, or has not ended.
std::optional<std::pair<std::int64_t, std::int64_t>> time_on_devices(const std::vector<DeviceEnd>& ends) {
  std::optional<std::pair<std::int64_t, std::int64_t>> all;
  for (const DeviceEnd& end : ends) {
    DeviceRuntime& runtime = runtime_of(end.event.device);
    if (!end.begin) return std::nullopt;
    const auto first = runtime.time_of(end.begin);
    const auto last = runtime.time_of(end.event);
    if (!first || !last) return std::nullopt;
    all = all ? std::pair(std::min(all->first, *first), std::max(all->second, *last))
              : std::pair(*first, *last);
  }
  return all;
}

// Behind all that the current streams of their devices hold.
std::vector<DeviceEnd> ends_after(std::vector<DeviceEnd> ends) {
  for (DeviceEnd& end : ends) {
    DeviceRuntime& runtime = runtime_of(end.event.device);
    end.event = runtime.record(runtime.current_stream(end.event.device.index));
  }
  return ends;
}

}  // namespace

bool inside_continuation() noexcept { return ready != nullptr; }
std::uint64_t continuations_run() noexcept { return ran; }

void Work::State::finish(std::exception_ptr with, WorkTiming when, std::vector<DeviceEnd> where) {
  std::vector<Callback> waiting;
  {
    const std::lock_guard lock(mutex);
    error = std::move(with);
    timing = std::move(when);
    ends = std::move(where);
    done = true;
    waiting.swap(callbacks);
    changed.notify_all();
  }
  if (waiting.empty()) return;
  std::deque<std::function<void()>> all;
  for (Callback& callback : waiting)
    all.push_back([self = shared_from_this(), callback = std::move(callback)] { callback(*self); });
  run_or_line_up(std::move(all));
}

void Work::State::when_done(Callback callback) {
  {
    const std::lock_guard lock(mutex);
    if (!done) return callbacks.push_back(std::move(callback));
  }
  std::deque<std::function<void()>>
      now;  // no list in braces: that would keep a copy of what the callback holds
  now.push_back([self = shared_from_this(), callback = std::move(callback)] { callback(*self); });
  run_or_line_up(std::move(now));
}

bool Work::done() const {
  if (state_ == nullptr) return true;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->done) return false;
  }
  return std::ranges::all_of(
      state_->ends, [](const DeviceEnd& end) { return runtime_of(end.event.device).passed(end.event); });
}

void Work::wait() const { (void)wait_for(kLongestTimeout); }

bool Work::wait_for(std::chrono::milliseconds timeout) const {
  if (state_ == nullptr) return true;
  std::unique_lock lock(state_->mutex);
  if (!state_->done) {
    if (timeout.count() <= 0) return false;
    if (inside_continuation()) refuse_to_wait();
    const auto is_done = [&] { return state_->done; };
    if (timeout >= kLongestTimeout)
      state_->changed.wait(lock, is_done);
    else if (!state_->changed.wait_for(lock, timeout, is_done))
      return false;
  }
  if (state_->error) std::rethrow_exception(state_->error);
  lock.unlock();
  order_after(state_->ends);
  return true;
}

void Work::wait_on_host() const {
  wait();
  if (inside_continuation() && !done()) refuse_to_wait();
  if (state_ == nullptr) return;
  for (const DeviceEnd& end : state_->ends)
    if (!runtime_of(end.event.device).wait_on_host(end.event, end.timeout))
      throw TimeoutError({}, end.operation + " has not ended on " + to_string(end.event.device) + " within " +
                                 seconds_text(end.timeout));
}

WorkTiming Work::timing() const {
  if (state_ == nullptr) return {};
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->done) return {};
  }
  WorkTiming timing = state_->timing;
  if (const auto device = time_on_devices(state_->ends)) std::tie(timing.running_ns, timing.end_ns) = *device;
  return timing;
}

Work Work::then_work(std::function<Work()> f) const {
  // Shared, because a std::function must be copyable; nobody copies it.
  auto promise = std::make_shared<WorkPromise>();
  Work result = promise->work();
  State::Callback go_on = [f = std::move(f), promise](const State& first) mutable {
    if (first.error) {
      f = nullptr;  // what it holds goes before anybody hears of the end
      return promise->set_error(first.error, first.timing);
    }
    Work second;
    WorkTiming timing = first.timing;
    std::vector<DeviceEnd> ends;
    try {
      order_after(first.ends);
      second = std::exchange(f, nullptr)();  // likewise
      ends = ends_after(first.ends);
    } catch (...) {
      timing.end_ns = now_ns();
      return promise->set_error(std::current_exception(), std::move(timing));
    }
    if (second.state_ == nullptr) {
      timing.end_ns = now_ns();
      return promise->set_done(std::move(timing), std::move(ends));
    }
    second.state_->when_done(
        [promise, timing = std::move(timing), ends = std::move(ends)](const State& last) mutable {
          timing.end_ns = now_ns();
          ends.insert(ends.end(), last.ends.begin(), last.ends.end());
          promise->keep(last.error, std::move(timing), std::move(ends));
        });
  };
  if (state_ != nullptr) {
    state_->when_done(std::move(go_on));
  } else {
    WorkPromise already;
    already.set_done();
    already.state_->when_done(std::move(go_on));
  }
  return result;
}

void Work::on_done(std::function<void(std::exception_ptr)> f) const {
  State::Callback call = [f = std::move(f)](const State& state) {
    try {
      f(state.error);
    } catch (const std::exception& problem) {
      log().error("a function given to Work::on_done threw: {}", problem.what());
    } catch (...) {
      log().error("a function given to Work::on_done threw what is no std::exception");
    }
  };
  if (state_ != nullptr) return state_->when_done(std::move(call));
  WorkPromise already;
  already.set_done();
  already.state_->when_done(std::move(call));
}

Work when_all(std::vector<Work> works) {
  std::erase_if(works, [](const Work& work) { return work.state_ == nullptr; });
  if (works.empty()) return {};
  struct Joint {
    WorkPromise promise;
    std::vector<Work> works;
    std::atomic<std::size_t> left;
  };
  auto joint = std::make_shared<Joint>();
  Work result = joint->promise.work();
  joint->left = works.size();
  joint->works = works;
  for (const Work& work : works)
    work.state_->when_done([joint](const Work::State&) {
      if (joint->left.fetch_sub(1) != 1) return;
      std::exception_ptr error;
      std::vector<DeviceEnd> ends;
      WorkTiming timing = joint->works.front().state_->timing;
      for (const Work& one : joint->works) {
        timing = joined(std::move(timing), one.state_->timing);
        if (!error) error = one.state_->error;
        ends.insert(ends.end(), one.state_->ends.begin(), one.state_->ends.end());
      }
      joint->promise.keep(error, timing, std::move(ends));
    });
  return result;
}

WorkPromise::WorkPromise() : state_(std::make_shared<Work::State>()) {}

WorkPromise::~WorkPromise() { abandon(); }

WorkPromise& WorkPromise::operator=(WorkPromise&& other) noexcept {
  if (this == &other) return *this;
  abandon();
  state_ = std::move(other.state_);
  return *this;
}

Work WorkPromise::work() const {
  if (state_ == nullptr)
    throw UsageError(
        "WorkPromise::work of one that was moved from; accepted: of the one that it was moved to");
  return Work(state_);
}

void WorkPromise::set_done(WorkTiming timing, std::vector<DeviceEnd> ends) {
  keep(nullptr, std::move(timing), std::move(ends));
}

void WorkPromise::set_error(std::exception_ptr error, WorkTiming timing) {
  if (!error)
    throw UsageError("WorkPromise::set_error without an error; accepted: a std::exception_ptr of one");
  keep(std::move(error), std::move(timing));
}

void WorkPromise::keep(std::exception_ptr error, WorkTiming timing, std::vector<DeviceEnd> ends) {
  if (state_ == nullptr || kept())
    throw UsageError("a WorkPromise is kept once, by set_done or set_error; this one was kept or moved from");
  state_->finish(std::move(error), std::move(timing), std::move(ends));
}

bool WorkPromise::kept() const {
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

void WorkPromise::abandon() noexcept {
  if (state_ == nullptr || kept()) return;
  state_->finish(std::make_exception_ptr(
                     SystemError("this work will never be done: its promise was dropped before it was kept")),
                 {});
}

}  // namespace lockstep
