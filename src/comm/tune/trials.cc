#include "comm/tune/trials.h"

#include <algorithm>
#include <optional>

#include "comm/call/internal_call.h"
#include "lockstep/base/clock.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostTrialBytes = std::size_t{128} << 20;  // of all ranks together
constexpr double kSecondsEach = 4e-3;                            // for one algorithm at one size

struct Trial {
  Collective what;
  std::vector<std::size_t> bytes;  // Call::bytes()
};

const std::vector<Trial>& trials() {
  constexpr std::size_t kib = 1024;
  constexpr std::size_t mib = 1024 * kib;
  static const std::vector<Trial> all = {
      {Collective::all_reduce,
       {kib, 4 * kib, 16 * kib, 64 * kib, 256 * kib, mib, 2 * mib, 4 * mib, 6 * mib, 8 * mib, 12 * mib,
        16 * mib, 24 * mib, 32 * mib, 64 * mib}},
      {Collective::reduce_scatter, {4 * kib, 64 * kib, mib}},
      {Collective::all_gather, {4 * kib, 64 * kib, mib}},
      {Collective::broadcast, {4 * kib, 64 * kib, mib}},
  };
  return all;
}

// The input and the output of a call, in one block.
struct Room {
  CommMemory shared;
  std::vector<std::byte> own;
  std::byte* data() { return own.empty() ? shared.as<std::byte>() : own.data(); }
};

// Every rank has room, or none: nobody may stay behind in a call.
std::optional<Room> make_room(Engine& engine, std::size_t bytes, bool reachable) {
  Room room;
  std::uint8_t there = 1;
  try {
    if (reachable)
      room.shared = engine.allocate(bytes, {});
    else
      room.own.assign(bytes, std::byte{0});
  } catch (const SystemError&) {
    there = 0;
  } catch (const std::bad_alloc&) {
    there = 0;
  }
  Call all = internal_call(Collective::all_reduce, &there, 1, -1);
  all.op = ReduceOp::min;
  engine.run(all);
  if (there == 0) return std::nullopt;
  return room;
}

Call call_of(const CallShape& shape, std::byte* room, const Algorithm& algorithm) {
  Call call = internal_call(shape.what, room, shape.bytes, 0);
  call.count = shape.bytes / sizeof(float);
  call.dtype = DType::f32;
  if (shape.what != Collective::broadcast) call.root = -1;
  if (shape.what == Collective::reduce_scatter || shape.what == Collective::all_gather)
    call.out = room + input_bytes(shape.what, shape.bytes, shape.ranks);
  call.algorithm = algorithm.name();
  return call;
}

std::size_t room_for(const CallShape& shape) {
  const bool apart = shape.what == Collective::reduce_scatter || shape.what == Collective::all_gather;
  return shape.bytes * (apart ? static_cast<std::size_t>(shape.ranks) + 1 : 1);
}

double seconds_of(Engine& engine, const Call& meeting, const Call& call) {
  engine.run(meeting);
  const std::int64_t begin = now_ns();
  engine.run(call);
  return static_cast<double>(now_ns() - begin) * 1e-9;
}

// The median of each call's slowest rank. Calls take turns, so that what changes on the machine meanwhile
// hits all of them; in a turn the first is not counted: it finds another's data in the caches.
std::vector<double> medians(Engine& engine, const std::vector<Call>& calls) {
  constexpr int kTurns = 4;
  const Call meeting = meeting_call();
  std::vector<std::uint32_t> rounds;  // of a turn
  for (const Call& call : calls) {
    engine.run(call);
    const double once = std::max(seconds_of(engine, meeting, call), 1e-7);
    rounds.push_back(static_cast<std::uint32_t>(std::clamp(kSecondsEach / kTurns / once, 2.0, 20.0)));
  }
  broadcast_bytes(engine, rounds.data(), rounds.size() * sizeof(rounds[0]));
  std::vector<std::vector<double>> times(calls.size());
  for (int turn = 0; turn < kTurns; ++turn)
    for (std::size_t i = 0; i < calls.size(); ++i) {
      engine.run(calls[i]);
      for (std::uint32_t k = 0; k < rounds[i]; ++k) times[i].push_back(seconds_of(engine, meeting, calls[i]));
    }
  std::vector<double> result;
  for (std::vector<double>& samples : times) {
    Call slowest = internal_call(Collective::all_reduce, samples.data(), samples.size(), -1);
    slowest.dtype = DType::f64;
    slowest.op = ReduceOp::max;
    engine.run(slowest);
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
    std::nth_element(samples.begin(), middle, samples.end());
    result.push_back(std::max(*middle, 1e-9));
  }
  return result;
}

bool measure(Engine& engine, Selector& table, const CallShape& shape) {
  std::optional<Room> room = make_room(engine, room_for(shape), shape.reachable);
  if (!room) return false;
  std::vector<const Algorithm*> algorithms;
  std::vector<Call> calls;
  for (const Algorithm* algorithm : all_algorithms()) {
    if (!algorithm->needs().reach || !can_run(*algorithm, shape)) continue;
    if (algorithm->needs().pages && shape.reachable) continue;  // what lies in reach needs no reading
    const Call call = call_of(shape, room->data(), *algorithm);
    if (!engine.refuses(call).empty()) continue;
    algorithms.push_back(algorithm);
    calls.push_back(call);
  }
  const std::vector<double> took = medians(engine, calls);
  for (std::size_t i = 0; i < took.size(); ++i) table.add_measurement(shape, *algorithms[i], took[i]);
  return true;
}

}  // namespace

void run_trials(Engine& engine, Selector& table) {
  for (const Trial& trial : trials())
    for (const bool reachable : {true, false})
      for (const std::size_t bytes : trial.bytes) {
        const CallShape shape{
            .what = trial.what, .ranks = engine.size(), .bytes = bytes, .reachable = reachable};
        if (room_for(shape) > kMostTrialBytes / static_cast<std::size_t>(engine.size())) break;
        if (!measure(engine, table, shape)) break;
      }
}

}  // namespace lockstep
