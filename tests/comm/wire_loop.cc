// A job for strangers to disturb: all_reduces until a file appears, then the number of them and whether every
// sum was right.
//
//   lockstep run -n N -- wire_loop FILE
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/comm/init.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  // The launcher's comes soon after a peer's death: on a busy machine before the dump is there.
  std::signal(SIGTERM, SIG_IGN);
  const lockstep::Group world = lockstep::init();
  const auto n = static_cast<float>(world.size());
  std::printf("rank %d begins\n", world.rank());
  std::fflush(stdout);
  const auto begin = lockstep::Clock::now();
  long calls = 0;
  long wrong = 0;
  long before = 0;
  int second = 0;
  for (;;) {
    std::vector<float> x(5000, static_cast<float>(world.rank() + 1));
    world.all_reduce(lockstep::buffer(x));
    for (const float value : x) wrong += value != n * (n + 1) / 2;
    ++calls;
    // Rank 0 says when it is enough.
    const double passed = std::chrono::duration<double>(lockstep::Clock::now() - begin).count();
    std::vector<float> go_on(1, world.rank() == 0 && std::filesystem::exists(argv[1]) ? 0.0F : 1.0F);
    world.broadcast(lockstep::buffer(go_on), 0);
    // A second in which no call ended is one with 0.
    while (world.rank() == 0 && passed > second + 1) {
      std::printf("rate %d %ld\n", second, calls - before);
      std::fflush(stdout);
      before = calls;
      ++second;
    }
    if (go_on[0] == 0) break;
  }
  std::printf("rank %d: %ld calls, %ld wrong\n", world.rank(), calls, wrong);
  return wrong == 0 ? 0 : 1;
}
