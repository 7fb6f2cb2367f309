#include "comm/world/group_impl.h"

#include <utility>

#include "base/start_thread.h"
#include "comm/world/work_state.h"
#include "lockstep/base/knobs.h"
#include "lockstep/base/log.h"
#include "lockstep/observe/flight_dump.h"
#include "lockstep/observe/stop_sign.h"

namespace lockstep {
namespace {

bool on_device(const Call& call) { return call.device.kind != Device::Kind::cpu; }

}  // namespace

GroupImpl::GroupImpl(std::unique_ptr<Engine> engine, std::string name, std::string job,
                     std::chrono::milliseconds timeout)
    : engine_(std::move(engine)),
      name_(std::move(name)),
      job_(std::move(job)),
      timeout_(timeout),
      own_flight_(
          engine_->peer(engine_->rank()).recorder.empty() ? FlightRing::kBytes + FlightRing::kAlignment : 0),
      flight_([&] {
        if (own_flight_.empty()) return engine_->peer(engine_->rank()).recorder;
        const auto address = reinterpret_cast<std::uintptr_t>(own_flight_.data());
        const std::size_t skip =
            (FlightRing::kAlignment - address % FlightRing::kAlignment) % FlightRing::kAlignment;
        return std::span(own_flight_).subspan(skip, FlightRing::kBytes);
      }()),
      stall_(Knobs::from_environment().warn_after) {
  if (const std::string folder = Knobs::from_environment().dump_dir; !folder.empty() && !job_.empty())
    stall_.on_stop(stop_sign(folder, job_), [this] { write_dump(nullptr); });
}

Group GroupImpl::make(std::unique_ptr<Engine> engine, std::string name, std::string job,
                      std::chrono::milliseconds timeout) {
  return Group(std::shared_ptr<GroupImpl>(
      new GroupImpl(std::move(engine), std::move(name), std::move(job), timeout), release));
}

void GroupImpl::release(GroupImpl* group) {
  if (!inside_continuation() || !group->thread_.joinable()) {
    delete group;
    return;
  }
  const std::lock_guard lock(group->mutex_);
  group->stopping_ = true;
  group->orphaned_ = true;
  group->changed_.notify_one();  // under the lock: behind it the thread may have ended the group
}

GroupImpl::~GroupImpl() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

template <class Body>
void GroupImpl::execute(Call& call, Body&& body) {
  // Only collectives are the same for all.
  const bool numbered = !is_message(call.what);
  if (numbered) ++sequence_;
  call.sequence = sequence_;
  call.flight = &flight_;
  call.stall = &stall_;
  if (call.timeout.count() == 0) call.timeout = timeout_;
  flight_.begin(numbered ? sequence_ : 0, flight_call(call), now_ns());
  try {
    body();
    flight_.end(FlightState::done, now_ns());
  } catch (const Error& error) {
    flight_.end(FlightState::failed, now_ns());
    if (error.kind() != ErrorKind::usage) dump(error);
    throw;
  } catch (...) {
    flight_.end(FlightState::failed, now_ns());
    throw;
  }
}

// Those would wait for the thread that they are on, or keep it from its work.
void GroupImpl::refuse_in_continuation(Collective what) const {
  if (inside_continuation())
    throw UsageError(std::string(to_string(what)) + " on group " + name_ +
                     ": a blocking call inside a function given to then() or on_done(), where nothing may "
                     "wait; accepted there: the asynchronous calls");
}

void GroupImpl::run(Call call) {
  refuse_in_continuation(call.what);
  const Turn turn(turns_);
  if (on_device(call))
    put_on_device(call, {});
  else
    execute(call, [&] { engine_->run(call); });
}

// Two threads' streams, or two calls of one, would otherwise run side by side.
DeviceEvent GroupImpl::put_on_device(Call& call, const DeviceEvent& ready, DeviceEvent* begin) {
  DeviceRuntime& runtime = runtime_of(call.device);
  call.stream = runtime.current_stream(call.device.index);
  if (ready) runtime.wait(call.stream, ready);
  if (const DeviceEvent& last = last_on(call.device)) runtime.wait(call.stream, last);
  if (begin != nullptr) *begin = runtime.record(call.stream);
  // A function that followed on a call may have put on this thread's stream what this one needs.
  if (!std::exchange(followed_, false)) call.start = ready;
  DeviceEvent end;
  call.end = &end;
  execute(call, [&] { engine_->run(call); });
  return last_on(call.device) = end ? std::move(end) : runtime.record(call.stream);
}

Work GroupImpl::start(Call call) {
  WorkPromise promise;
  Work work = promise.work();
  DeviceEvent ready;
  if (on_device(call)) {
    DeviceRuntime& runtime = runtime_of(call.device);
    ready = runtime.record(runtime.current_stream(call.device.index));
  }
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) start_thread();
    queue_.push_back({.call = std::move(call), .promise = std::move(promise), .ready = std::move(ready)});
    queue_.back().turn = turns_.take();  // last, for a number that is taken must be used
  }
  changed_.notify_one();
  return work;
}

void GroupImpl::start_thread() {
  thread_ =
      lockstep::start_thread("the thread for asynchronous calls of group " + name_, [this] { serve(); });
}

void GroupImpl::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) break;
    Queued next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    turns_.await(next.turn);
    serve(std::move(next));
    turns_.pass();
    lock.lock();
  }
  if (!orphaned_) return;
  lock.unlock();
  thread_.detach();  // it is this one
  delete this;
}

// One call, and what is to follow on it.
void GroupImpl::serve(Queued next) {
  WorkTiming timing;
  timing.begin_ns = now_ns();
  next.call.timing = &timing;
  std::exception_ptr error;
  std::vector<DeviceEnd> ends;
  try {
    if (on_device(next.call)) {
      runtime_of(next.call.device).use_own_stream(next.call.device.index);
      DeviceEvent begin;
      const DeviceEvent end = put_on_device(next.call, next.ready, &begin);
      ends.push_back({end, next.call.where(name_), next.call.timeout, std::move(begin)});
    } else {
      execute(next.call, [&] { engine_->run(next.call); });
    }
  } catch (...) {
    error = std::current_exception();
  }
  timing.end_ns = now_ns();
  const bool on_stream = !ends.empty();
  const std::uint64_t functions = continuations_run();
  error ? next.promise.set_error(std::move(error), std::move(timing))
        : next.promise.set_done(std::move(timing), std::move(ends));
  if (continuations_run() == functions) return;
  followed_ = true;
  if (!on_stream) return;
  // What was to follow is on this thread's stream now, and the group's next call, on any, comes after it.
  try {
    DeviceRuntime& runtime = runtime_of(next.call.device);
    last_on(next.call.device) = runtime.record(runtime.current_stream(next.call.device.index));
  } catch (const std::exception&) {  // the device failed: whoever waits for it is told
  }
}

Group GroupImpl::split(int colour, int key) {
  refuse_in_continuation(Collective::split);
  const Turn turn(turns_);
  const std::string name = name_ + "/" + std::to_string(splits_++) + "." + std::to_string(colour);
  Call call;
  call.what = Collective::split;
  std::unique_ptr<Engine> part;
  execute(call, [&] { part = engine_->split(colour, key, name, call); });
  if (part == nullptr) return {};
  return make(std::move(part), name, job_, timeout_);
}

void GroupImpl::give_up(const Error& error) {
  const Turn turn(turns_);
  engine_->fail(error);
}

void GroupImpl::dump(const Error& error) noexcept {
  if (!std::exchange(dumped_, true)) write_dump(&error);
}

void GroupImpl::write_dump(const Error* error) noexcept try {
  const Knobs knobs = Knobs::from_environment();
  if (knobs.dump_dir.empty()) return;
  FlightDump dump{.job = job_, .group = name_, .rank = engine_->rank(), .size = engine_->size()};
  if (error != nullptr) {
    dump.error_kind = error->kind();
    dump.error_message = error->what();
  }
  const RankNames names = engine_->rank_names();
  dump.world_rank = names.world(engine_->rank());
  for (int r = 0; r < names.size(); ++r) dump.world_ranks.push_back(names.world(r));
  if (const auto* const peer = dynamic_cast<const PeerError*>(error);
      peer != nullptr && peer->rank() >= 0 && peer->rank() < names.size())
    dump.gone = {names.world(peer->rank())};
  set_time(dump);
  for (int r = 0; r < engine_->size(); ++r) {
    const PeerView peer = engine_->peer(r);
    const std::string& state = peer.state;
    const bool gone = state == "left" || state == "dead";
    // Of a rank on another machine nothing is known, unless that it is gone.
    if (!gone && r != engine_->rank() && peer.recorder.empty()) continue;
    FlightRank& rank = dump.ranks.emplace_back();
    rank.rank = r;
    rank.state = state == "left" ? RankState::left : state == "dead" ? RankState::dead : RankState::alive;
    rank.pid = peer.pid;
    if (r == engine_->rank())
      rank.entries = flight_.last();
    else if (!peer.recorder.empty())
      rank.entries = read_flight_ring(peer.recorder);
    else
      rank.recorded = false;
  }
  write_flight_dump(dump, knobs.dump_dir);
} catch (const std::exception& problem) {
  log().warn("cannot write the flight recorder's dump: {}", problem.what());
}

Group make_group(std::unique_ptr<Engine> engine, std::string name, std::chrono::milliseconds timeout) {
  return GroupImpl::make(std::move(engine), std::move(name), "", timeout);
}

}  // namespace lockstep
