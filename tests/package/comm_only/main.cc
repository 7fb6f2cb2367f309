#include <lockstep/lockstep.h>

#include <cstdio>

#ifdef LOCKSTEP_WITH_TORCH
#error "this program is to be built without libtorch"
#endif

int main() {
  auto world = lockstep::init();
  const double mean = lockstep::mean(world, world.rank() * 6, world.rank() + 1);
  const auto texts = world.all_gather(std::string(static_cast<std::size_t>(world.rank() + 1), 'x'));
  if (world.rank() == 0)
    std::printf("%d ranks, mean %g, last text %s\n", world.size(), mean, texts.back().c_str());
}
