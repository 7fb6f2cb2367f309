#include "comm/fault_plan.h"

#include <algorithm>
#include <csignal>

namespace lockstep::testing {
namespace {

// splitmix64: a stream of dice that is the same on every machine.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  }
  int below(int limit) { return static_cast<int>(next() % static_cast<std::uint64_t>(limit)); }
  template <class T, std::size_t n>
  T one_of(const T (&choices)[n]) {
    return choices[below(static_cast<int>(n))];
  }

 private:
  std::uint64_t state_;
};

Dice dice_of(const Plan& plan, int index, int salt) {
  return Dice(plan.seed + (static_cast<std::uint64_t>(index) << 20) + static_cast<std::uint64_t>(salt));
}

}  // namespace

const char* to_string(Fault fault) {
  constexpr const char* names[kFaults] = {
      "killed",         "crashed", "two_killed", "rank0_killed", "killed_in_split", "killed_in_init",
      "died_of_itself", "exited",  "left",       "stopped",      "mismatched"};
  return names[static_cast<int>(fault)];
}

bool Plan::is_victim(int rank) const {
  return std::find(victims.begin(), victims.end(), rank) != victims.end();
}

bool Plan::ends_process() const {
  return fault != Fault::left && fault != Fault::stopped && fault != Fault::mismatched;
}

Plan plan_of(std::uint64_t seed, int round) {
  Plan plan;
  plan.seed = Dice(seed + (static_cast<std::uint64_t>(round) << 32)).next();
  Dice dice(plan.seed);
  plan.fault = static_cast<Fault>(round % kFaults);  // each in turn, so that few rounds cover all
  plan.difference = static_cast<Difference>(round / kFaults % kDifferences);
  plan.size = 2 + dice.below(7);
  if (plan.fault == Fault::two_killed) plan.size = std::max(plan.size, 3);
  plan.victims = {plan.fault == Fault::rank0_killed ? 0 : dice.below(plan.size)};
  if (plan.fault == Fault::two_killed)
    plan.victims.push_back((plan.victims[0] + 1 + dice.below(plan.size - 1)) % plan.size);
  plan.signal = SIGKILL;
  if (plan.fault == Fault::crashed || plan.fault == Fault::died_of_itself)
    plan.signal = dice.one_of({SIGSEGV, SIGABRT, SIGTERM});
  plan.at_call = dice.below(25);
  // Ranks need some time to start before they look for each other.
  plan.delay = std::chrono::microseconds(dice.below(plan.fault == Fault::killed_in_init ? 100'000 : 30'000));
  plan.most_bytes = dice.one_of({std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{4} << 20});
  plan.node_size = dice.one_of({0, 0, 2, 3});
  plan.timeout = plan.fault == Fault::stopped ? std::chrono::milliseconds(500 + 500 * slowness())
                                              : std::chrono::minutes(2);
  return plan;
}

PlannedCall call_at(const Plan& plan, int index) {
  Dice dice = dice_of(plan, index, 1);
  PlannedCall call;
  // Few splits and messages among many collectives; a round about splits has little else.
  const int kind = dice.below(12);
  const int split_below = plan.fault == Fault::killed_in_split ? 8 : 1;
  if (kind < split_below)
    call.what = Collective::split;
  else if (kind == 11)
    call.what = Collective::send;  // and the receiver receives
  else
    call.what = static_cast<Collective>(dice.below(static_cast<int>(Collective::barrier) + 1));
  // A rank that errs in a part would leave the world waiting for it: mismatches stay in the world.
  const bool parts = plan.fault != Fault::mismatched;
  call.on = parts && call.what != Collective::split && dice.below(3) == 0 ? PlannedCall::On::part
                                                                          : PlannedCall::On::world;
  call.asynchronous = dice.below(3) == 0;
  call.private_memory = dice.below(2) == 0;
  call.dtype = dice.one_of(kAllDTypes);
  do call.op = dice.one_of(kAllReduceOps);
  while (!supports(call.op, call.dtype));
  call.size_dice = dice.next();
  call.root_dice = dice.next();
  call.algorithm_dice = dice.next();
  return call;
}

int colour_at(const Plan& plan, int index, int rank) { return dice_of(plan, index, 100 + rank).below(2); }
int key_at(const Plan& plan, int index, int rank) { return dice_of(plan, index, 200 + rank).below(3); }

}  // namespace lockstep::testing
