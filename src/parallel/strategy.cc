#include "lockstep/parallel/strategy.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/version.h>

#include <exception>

#include "base/amx.h"
#include "lockstep/base/random.h"

namespace lockstep {

Strategy::LaneScope Strategy::lane(const LaneInfo& info) { return LaneScope(*this, info); }
Strategy::NoSync Strategy::no_sync() { return NoSync(*this); }

torch::Device Strategy::device() {
  if (device_) return *device_;
  device_ = torch::kCPU;
  if (const auto parameters = module().parameters(); !parameters.empty()) device_ = parameters[0].device();
  return *device_;
}

namespace {

// Before libtorch computes anything, and before static variables do.
[[gnu::constructor(200)]] void settle_amx() { avoid_undescribed_amx(below_amx(TORCH_VERSION_MAJOR)); }

// Those that a lane's operations draw from: the processor's, and the GPU's where the model is there.
std::vector<at::Generator> generators_for(torch::Device device) {
  std::vector<at::Generator> list = {at::detail::getDefaultCPUGenerator()};
  if (device.is_cuda()) list.push_back(at::globalContext().defaultGenerator(device));
  return list;
}

}  // namespace

// The lane's own stream, and afterwards the program's again.
Strategy::LaneScope::LaneScope(Strategy& owner, const LaneInfo& info) : owner_(owner) {
  owner_.begin_lane(info);
  const std::uint64_t seed =
      stream_seed(info.seed, static_cast<std::uint64_t>(info.step), static_cast<std::uint64_t>(info.index));
  for (at::Generator& generator : generators_for(owner_.device())) {
    const std::lock_guard lock(generator.mutex());
    generator_states_.push_back(generator.get_state());
    generator.set_current_seed(seed);
  }
}

Strategy::LaneScope::~LaneScope() {
  std::size_t i = 0;
  for (at::Generator& generator : generators_for(owner_.device())) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(generator_states_[i++]);
  }
  owner_.end_lane();
}

Strategy::Whole Strategy::whole() { return Whole(*this); }
Strategy::Whole::Whole(Strategy& owner) : owner_(owner) {
  if (owner_.wholes_ == 0) owner_.set_whole(true);
  ++owner_.wholes_;
}
Strategy::Whole::~Whole() noexcept(false) {
  if (--owner_.wholes_ == 0) try {
      owner_.set_whole(false);
    } catch (...) {  // beside what is on its way already there is no room for it
      if (std::uncaught_exceptions() == 0) throw;
    }
}

Strategy::EachWhole Strategy::each_whole() { return EachWhole(*this); }
void Strategy::EachWhole::bring(const torch::Tensor& tensor) const {
  if (owner_.wholes_ == 0 && tensor.defined()) owner_.bring(tensor);
}
Strategy::EachWhole::~EachWhole() noexcept(false) {
  if (owner_.wholes_ == 0) try {
      owner_.bring(torch::Tensor());
    } catch (...) {  // gathers have failed, which may be what is on its way already; they keep it
      if (std::uncaught_exceptions() == 0) throw;
    }
}

Strategy::NoSync::NoSync(Strategy& owner) : owner_(owner), before_(owner.set_sync(false)) {}

Strategy::NoSync::~NoSync() { owner_.set_sync(before_); }

}  // namespace lockstep
