#include "lockstep/parallel/strategy.h"

#include <ATen/CPUGeneratorImpl.h>

#include "lockstep/base/random.h"

namespace lockstep {

Strategy::LaneScope Strategy::lane(const LaneInfo& info) { return LaneScope(*this, info); }
Strategy::NoSync Strategy::no_sync() { return NoSync(*this); }

// The lane's own stream, and afterwards the program's again.
Strategy::LaneScope::LaneScope(Strategy& owner, const LaneInfo& info) : owner_(owner) {
  owner_.begin_lane(info);
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator_state_ = generator.get_state();
  generator.set_current_seed(
      stream_seed(info.seed, static_cast<std::uint64_t>(info.step), static_cast<std::uint64_t>(info.index)));
}

Strategy::LaneScope::~LaneScope() {
  auto generator = at::detail::getDefaultCPUGenerator();
  {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(generator_state_);
  }
  owner_.end_lane();
}

Strategy::NoSync::NoSync(Strategy& owner) : owner_(owner), before_(owner.set_sync(false)) {}

Strategy::NoSync::~NoSync() { owner_.set_sync(before_); }

}  // namespace lockstep
