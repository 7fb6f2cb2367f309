// The grid with processes as ranks: started by `lockstep run -n N`. --large: the one large size.
#include <cstdio>
#include <string_view>

#include "comm/grid.h"
#include "lockstep/comm/init.h"

int main(int argc, char** argv) {
  using lockstep::testing::GridOptions;
  const bool large = argc > 1 && std::string_view(argv[1]) == "--large";
  try {
    const lockstep::Group world = lockstep::init({.timeout = std::chrono::minutes(2)});
    // What a rank compares where the ranks are fewest, or it is never a root, rounded down.
    const std::size_t fewest = large ? 1'200 : 20'000;
    GridOptions options;
    if (large) options = {.counts = {(1 << 20) + 3}, .every_memory = false};
    const auto result = lockstep::testing::run_grid(world, options);
    world.barrier();
    if (result.problem.empty() && result.checks >= fewest) {
      if (world.rank() == 0) std::printf("%zu results of rank 0 are right\n", result.checks);
      return 0;
    }
    std::fprintf(stderr, "after %zu checks: %s\n", result.checks, result.problem.c_str());
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s error: %s\n", lockstep::to_string(error.kind()), error.what());
  }
  return 1;
}
