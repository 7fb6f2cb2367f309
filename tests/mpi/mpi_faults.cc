// Ways to fail. What each rank then reports is read by faults_test.py.
#include <sys/mman.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "mpi/mpi_hold.h"
#include "mpi/mpi_worker.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::minutes kUntilTheTestGivesUp{10};

// How long a rank waits for one that does not come: as long as the test says, which asks again with more
// where another one was late too.
milliseconds patience() {
  const char* const ms = std::getenv("FAULT_MS");
  return milliseconds(ms == nullptr ? 1000 : std::atoi(ms));
}

void reduce(const Group& world, std::size_t count, CallOptions options) {
  std::vector<float> x(count, 1);
  world.all_reduce(buffer(x), options);
}

// Runs `body` on memory that is unmapped as soon as it has thrown: whoever touches it later crashes. Then the
// last rank, which was held inside the call, goes on, and MPI moves what it still has to move.
template <class Body>
void free_too_early(const Group& world, Body&& body) {
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  const int last = world.size() - 1;
  void* const data = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw SystemError("no memory");
  const auto after = [&] {
    ::munmap(data, kBytes);
    if (world.rank() != last) let_go(last);
    meet_again(-1);
  };
  try {
    body(Buffer{data, kBytes / sizeof(float), DType::f32});
  } catch (const Error&) {
    after();
    throw;
  }
  after();
}

// The last rank does something else than the others, after a call that went well.
void misbehave(const Group& world, const std::string& name) {
  const bool odd = world.rank() == world.size() - 1;
  reduce(world, 4, {});
  if (name == "count") return reduce(world, odd ? 9 : 8, {});
  if (name == "count-native") return reduce(world, odd ? 9 : 8, {.algorithm = "native"});
  if (name == "large") return reduce(world, odd ? 1 << 20 : 8, {});
  if (name == "native") return reduce(world, 8, {.algorithm = odd ? "native" : "tree"});
  if (name == "operation") return odd ? world.barrier() : reduce(world, 8, {});
  if (name == "divisor")
    return reduce(world, 8, {.op = ReduceOp::avg, .algorithm = "native", .divisor = odd ? 3.0 : 2.0});
  if (name == "message") {
    std::vector<float> x(8);
    if (world.rank() == 0) return world.recv(buffer(x), world.size() - 1);
    if (odd) world.send(ConstBuffer(x.data(), 7, DType::f32), 0);
    return world.barrier();
  }
  if (name == "late" || name == "late-native") {
    // One rank's time runs out; what it finds is told to the other, and then the last one comes.
    const CallOptions options{.algorithm = name == "late" ? "tree" : "native",
                              .timeout = world.rank() == 0 ? patience() : milliseconds(60'000)};
    if (odd) hold();
    try {
      return reduce(world, 8, options);
    } catch (const Error&) {
      if (!odd) let_go(world.size() - 1);
      throw;
    }
  }
  if (name == "freed-native") {
    if (odd) hold_at(At::all_reduce);
    return free_too_early(world, [&](Buffer x) {
      world.all_reduce(x, {.algorithm = "native", .timeout = milliseconds(odd ? 60'000 : 500)});
    });
  }
  if (name == "freed-ours") {
    if (odd) hold_at(At::receive);
    return free_too_early(world, [&](Buffer x) {
      world.broadcast(x, 0, {.algorithm = "tree", .timeout = milliseconds(odd ? 60'000 : 500)});
    });
  }
  if (name == "broken-part") {
    // In the other order: rank 2 of the world is rank 0.
    const Group part = world.split(0, -world.rank());
    float x = 0;
    if (world.rank() == 0) {
      fail_next_message();
      part.recv(Buffer{&x, 1, DType::f32}, 0);
    }
    if (odd) part.send(ConstBuffer(&x, 1, DType::f32), 2);
    return part.barrier();
  }
  if (name == "no-memory") {
    if (world.rank() == 0) deny_next_memory();
    try {
      return reduce(world, 1 << 20, {.algorithm = "ring"});
    } catch (const Error&) {
      if (world.rank() == 0 && requests_taken_back() == 0)
        throw SystemError("MPI still has requests of a call that was given up");
      throw;
    }
  }
  // Longer than the test waits: nobody's time runs out.
  if (name == "leave") {
    if (odd) return;
    return reduce(world, 8, {.timeout = kUntilTheTestGivesUp});
  }
  if (name == "killed" || name == "killed-alone") {
    if (odd) {
      std::printf("rank %d: dies\n", world.rank());
      std::fflush(stdout);
      std::raise(SIGKILL);
    }
    return reduce(world, 8, {.timeout = name == "killed" ? kUntilTheTestGivesUp : patience()});
  }
  throw UsageError("no fault '" + name + "'");
}

}  // namespace

void run_fault(const std::string& name) {
  int rank = -1;
  int last = -1;
  const auto say = [&](const std::string& text) {
    std::printf("rank %d: %s\n", rank, text.c_str());
    std::fflush(stdout);
  };
  {
    const Group world = mpi_world(std::chrono::seconds(20));
    rank = world.rank();
    last = world.size() - 1;
    try {
      misbehave(world, name);
      say("no error");
    } catch (const Error& error) {
      say(std::string(to_string(error.kind())) + " error: " + error.what());
      if (name != "broken-part") try {  // which leaves the world as it is
          world.barrier();
          say("the failure was not sticky");
        } catch (const Error& again) {
          if (std::string(again.what()) != error.what()) say(std::string("another error: ") + again.what());
        }
    }
  }
  // mpirun ends all as soon as one goes without MPI's end: wait until the others have reported too.
  meet_again(name.starts_with("killed") ? last : -1);
  std::_Exit(0);
}

}  // namespace lockstep::testing
