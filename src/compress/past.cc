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
  std::vector<std::int64_t> numbers = {own.bond,  own.steps,         own.last_step, own.subtrees,
                                       own.begun, own.most_gathered, drawn()};
  numbers.insert(numbers.end(), own.choices.begin(), own.choices.end());
  const std::vector<std::vector<std::int64_t>> all = group.all_gather(numbers);
  constexpr std::size_t kSteps = 1, kBond = 6, kChoices = 7;
  std::size_t whose = 0;
  for (std::size_t r = 1; r < all.size() && all[0][kSteps] == 0; ++r)
    if (all[r][kSteps] > all[whose][kSteps]) whose = r;
  const std::vector<std::int64_t>& n = all[whose];
  const Past past{.bond = n[0],
                  .steps = n[1],
                  .last_step = n[2],
                  .subtrees = n[3],
                  .begun = n[4],
                  .most_gathered = n[5],
                  .choices = {n.begin() + kChoices, n.end()}};
  return {
      .past = past, .whose = static_cast<int>(whose), .is_own = past.bond == own.bond, .bond = all[0][kBond]};
}

}  // namespace lockstep::compress
