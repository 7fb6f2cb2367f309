// Calls that are under way together: asynchronous ones, messages both ways, groups beside each other.
#include <cstdio>
#include <numeric>
#include <thread>
#include <vector>

#include "mpi/mpi_worker.h"

namespace lockstep::testing {
namespace {

int failures = 0;

void expect(bool holds, const char* what, int rank) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "rank %d: %s\n", rank, what);
}

// Many at once, ours and MPI's own taking turns; they run in the order in which they were started.
void asynchronous(const Group& world) {
  constexpr int kCalls = 20;
  const double ranks = world.size();
  std::vector<std::vector<float>> data(kCalls, std::vector<float>(30000));
  std::vector<Work> works;
  for (int i = 0; i < kCalls; ++i) {
    std::fill(data[static_cast<std::size_t>(i)].begin(), data[static_cast<std::size_t>(i)].end(),
              static_cast<float>(i + world.rank()));
    works.push_back(world.all_reduce_async(buffer(data[static_cast<std::size_t>(i)]),
                                           {.algorithm = i % 2 == 0 ? "" : "native"}));
  }
  works.back().wait();
  for (int i = 0; i < kCalls; ++i) {
    expect(works[static_cast<std::size_t>(i)].done(), "an earlier call ended after a later one",
           world.rank());
    const auto want = static_cast<float>(ranks * i + ranks * (ranks - 1) / 2);
    bool right = true;
    for (const float x : data[static_cast<std::size_t>(i)]) right &= x == want;
    expect(right, "an asynchronous sum is wrong", world.rank());
  }
}

// Round the ring, both ways of sending, larger than what MPI buffers.
void messages(const Group& world) {
  if (world.size() == 1) return;
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() - 1 + world.size()) % world.size();
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{400000}}) {
    std::vector<std::int64_t> out(count, world.rank());
    std::vector<std::int64_t> in(count, -1);
    if (world.rank() == 0) {
      world.send(buffer(out), next);
      world.recv(buffer(in), previous);
    } else {
      world.recv(buffer(in), previous);
      world.send(buffer(out), next);
    }
    expect(in == std::vector<std::int64_t>(count, previous), "a message is wrong", world.rank());
  }
  // A message that waits does not stand in the way of a collective.
  std::vector<float> x = {world.rank() == 0 ? 1.0F : 0.0F};
  if (world.rank() == 0) world.send(buffer(x), 1);
  world.barrier();
  if (world.rank() == 1) {
    world.recv(buffer(x), 0);
    expect(x[0] == 1, "a message that waited is wrong", world.rank());
  }
}

// A worker without lanes takes the others' divisor, of ours and of MPI's own.
void divisors(const Group& world) {
  if (world.size() == 1) return;
  for (const char* algorithm : {"", "native", "ring", "tree"}) {
    std::vector<double> x = {6};
    const bool knows = world.rank() == world.size() - 1;
    world.all_reduce(buffer(x),
                     {.op = ReduceOp::avg, .algorithm = algorithm, .divisor = knows ? 3 : kDivisorOfOthers});
    expect(x[0] == 2.0 * world.size(), "the divisor of another rank was not used", world.rank());
  }
}

// Two groups of the same ranks, used from two threads at a time.
void concurrent(const Group& world) {
  const Group other = world.split(0, world.rank());
  const auto work = [](const Group& group) {
    bool right = true;
    for (int i = 0; i < 100; ++i) {
      std::vector<std::int32_t> x(static_cast<std::size_t>(1 + 700 * (i % 5)), 1);
      group.all_reduce(buffer(x), {.algorithm = i % 3 == 0 ? "native" : ""});
      for (const std::int32_t y : x) right &= y == group.size();
    }
    return right;
  };
  bool first = false;
  std::thread thread([&] { first = work(other); });
  const bool second = work(world);
  thread.join();
  expect(first && second, "groups that run together disturb each other", world.rank());
}

// Groups come and go; a rank may stay out.
void splits(const Group& world) {
  for (int i = 0; i < 30; ++i) {
    const Group part = world.split(world.rank() == i % world.size() ? -1 : 7, world.rank());
    expect(static_cast<bool>(part) == (world.rank() != i % world.size()), "membership", world.rank());
    if (!part) continue;
    std::vector<std::int32_t> x = {1};
    part.all_reduce(buffer(x));
    expect(x[0] == world.size() - 1, "a part has the wrong size", world.rank());
  }
}

}  // namespace

int run_work(const Group& world) {
  asynchronous(world);
  messages(world);
  divisors(world);
  concurrent(world);
  splits(world);
  // UsageError leaves the group as it was.
  std::vector<Half> halves(3);
  try {
    world.all_reduce(buffer(halves), {.algorithm = "native"});
    expect(false, "MPI's own sum of f16 should be refused", world.rank());
  } catch (const UsageError&) {
    world.all_reduce(buffer(halves));
  }
  world.barrier();
  return failures == 0 ? 0 : 1;
}

}  // namespace lockstep::testing
