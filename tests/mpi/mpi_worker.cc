// A rank of the MPI tests, started by mpirun: mpi_worker grid | work | init | serialized | funneled | fault
// NAME
#include "mpi/mpi_worker.h"

#include <cstdio>
#include <cstdlib>

#include "comm/channel/mpi_runtime.h"
#include "comm/engine/registry.h"
#include "comm/grid.h"
#include "comm/world/group_impl.h"
#include "lockstep/comm/init.h"

namespace lockstep::testing {

Group mpi_world(std::chrono::milliseconds timeout) {
  const EngineKind* const kind = find_engine("mpi");
  if (kind == nullptr) throw SystemError("linking lockstep_mpi added no engine");
  return make_group(kind->make({}, Knobs::from_environment(), nullptr), "world", timeout);
}

static int run_grid_on(const Group& group, const GridOptions& options, std::size_t fewest) {
  const GridResult result = run_grid(group, options);
  group.barrier();
  if (result.problem.empty() && result.checks > fewest) return 0;
  std::fprintf(stderr, "after %zu checks: %s\n", result.checks, result.problem.c_str());
  return 1;
}

int run_grids(const Group& world) {
  // Ours byte for byte against the reference, MPI's own within rounding. 400003: several chunks a message.
  int failures = run_grid_on(world, {.counts = {1, 4099}, .every_memory = false}, 1800);
  failures += run_grid_on(world, {.counts = {0, 17}, .dtypes = {DType::f32}, .every_memory = false}, 150);
  failures += run_grid_on(world, {.counts = {400003}, .dtypes = {DType::f32}, .every_memory = false}, 100);
  const Group part = world.split(world.rank() % 2, -world.rank());
  failures += run_grid_on(part, {.counts = {5}, .every_memory = false}, 900);
  return failures;
}

}  // namespace lockstep::testing

namespace {

using namespace lockstep;
using namespace lockstep::testing;

int run(const std::string& what) {
  const Group world = mpi_world(std::chrono::seconds(60));
  if (std::string(world.engine()) != "mpi") throw SystemError("not the mpi engine");
  if (what == "grid") return run_grids(world);
  if (what == "work") return run_work(world);
  throw UsageError("mpi_worker grid | work | init | serialized | funneled | fault NAME");
}

// As programs do: init() finds everything, LOCKSTEP_ENGINE says what to use.
int run_init() {
  const Group world = init({.timeout = std::chrono::seconds(60)});
  const char* const asked = std::getenv("LOCKSTEP_ENGINE");
  if (asked == nullptr || std::string(world.engine()) != asked)
    throw SystemError(std::string("init() gave engine ") + world.engine());
  return run_grid_on(world, {.counts = {1, 4099}, .every_memory = false}, 1800);
}

// A program that starts and ends MPI itself, with less than our own MPI_THREAD_MULTIPLE.
int run_inside(int level) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, level, &provided);
  int failures = 0;
  const auto fail = [&](const std::string& why) {
    ++failures;
    std::fprintf(stderr, "%s\n", why.c_str());
  };
  if (provided != level)
    fail("MPI gives thread level " + std::to_string(provided) + " where " + std::to_string(level) +
         " was asked for");
  else if (level >= MPI_THREAD_SERIALIZED)
    failures += run("work");
  else
    try {
      mpi_world(std::chrono::seconds(60));
      fail("it should be refused");
    } catch (const SystemError& error) {
      const std::string text = error.what();
      if (text.find("MPI gives MPI_THREAD_FUNNELED; asynchronous collectives need") == std::string::npos)
        fail("refused with other words: " + text);
    }
  MPI_Finalize();
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    if (what == "fault" && argc > 2) run_fault(argv[2]);
    if (what == "init") return run_init();
    if (what == "serialized") return run_inside(MPI_THREAD_SERIALIZED);
    if (what == "funneled") return run_inside(MPI_THREAD_FUNNELED);
    return run(what);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s error: %s\n", to_string(error.kind()), error.what());
  }
  return 1;
}
