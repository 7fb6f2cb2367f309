#include "compress/past.h"

#include <random>
#include <vector>

namespace lockstep::compress {
namespace {

std::int64_t drawn() {
  std::random_device device;
  return static_cast<std::int64_t>((std::uint64_t{device()} << 31) | device() | 1);
}

}  // namespace

Agreed agree(const Past& own, const Group& group) {
  const std::vector<std::int64_t> numbers = {own.bond,   own.steps, own.last_step, own.subtrees,
                                             own.choice, own.begun, drawn()};
  const std::vector<std::vector<std::int64_t>> all = group.all_gather(numbers);
  constexpr std::size_t kSteps = 1;
  std::size_t whose = 0;
  for (std::size_t r = 1; r < all.size() && all[0][kSteps] == 0; ++r)
    if (all[r][kSteps] > all[whose][kSteps]) whose = r;
  const std::vector<std::int64_t>& n = all[whose];
  const Past past{
      .bond = n[0], .steps = n[1], .last_step = n[2], .subtrees = n[3], .choice = n[4], .begun = n[5]};
  return {.past = past, .is_own = past.bond == own.bond, .bond = all[0][6]};
}

}  // namespace lockstep::compress
