#include "lockstep/optim/grad_scaler.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "optim/require.h"

namespace lockstep {
namespace {

constexpr const char* kName = "GradScaler";

bool is_scale(double value) { return std::isfinite(value) && value > 0; }

}  // namespace

GradScaler::GradScaler(Optimizer& optimizer, GradScalerOptions options)
    : optimizer_(optimizer), options_(options), scale_(options.init_scale) {
  require(is_scale(scale_), kName, "init_scale", scale_, "more than 0, finite");
  require(std::isfinite(options.growth_factor) && options.growth_factor > 1, kName, "growth_factor",
          options.growth_factor, "more than 1, finite");
  require(options.backoff_factor > 0 && options.backoff_factor < 1, kName, "backoff_factor",
          options.backoff_factor, "more than 0, less than 1");
  require(options.growth_interval > 0, kName, "growth_interval", static_cast<double>(options.growth_interval),
          "1 or more");
  require(options.most_skipped > 0, kName, "most_skipped", static_cast<double>(options.most_skipped),
          "1 or more");
  optimizer_.source().watch_overflow(true);
}

GradScaler::~GradScaler() { optimizer_.source().watch_overflow(false); }

torch::Tensor GradScaler::scale(const torch::Tensor& loss) const {
  return (loss.element_size() == 2 ? loss.to(torch::kFloat32) : loss) * scale_;
}

bool GradScaler::step() {
  GradientSource& source = optimizer_.source();
  source.synchronize();
  if (!source.overflowed()) {
    optimizer_.step(scale_);
    skipped_in_a_row_ = 0;
    if (++growth_tracker_ < options_.growth_interval) return true;
    growth_tracker_ = 0;
    if (is_scale(scale_ * options_.growth_factor)) scale_ *= options_.growth_factor;
    return true;
  }
  optimizer_.zero_grad();  // they are of no use
  growth_tracker_ = 0;
  ++skipped_;
  const double before = scale_;
  if (is_scale(scale_ * options_.backoff_factor)) scale_ *= options_.backoff_factor;
  if (++skipped_in_a_row_ >= options_.most_skipped)
    throw SystemError(fmt::format(
        "{} steps in a row were skipped, because gradients were not finite, down to a loss scale of {:.3g}: "
        "scaling can't help; a smaller learning rate, or bf16, may",
        skipped_in_a_row_, before));
  return false;
}

StateDict GradScaler::state_dict() const {
  const auto count = [](std::int64_t value) { return torch::full({}, value, torch::kInt64); };
  return {{"scale", torch::full({}, scale_, torch::kFloat64)},
          {"growth_tracker", count(growth_tracker_)},
          {"skipped", count(skipped_)},
          {"skipped_in_a_row", count(skipped_in_a_row_)}};
}

void GradScaler::load_state_dict(const StateDict& state) {
  const StateDict own = state_dict();
  for (const auto& [name, tensor] : own) {
    const auto found = state.find(name);
    if (found == state.end()) throw UsageError(fmt::format("{}: state dict: '{}' is missing", kName, name));
    if (!found->second.defined() || found->second.dim() != 0 ||
        found->second.scalar_type() != tensor.scalar_type() ||
        !(name == "scale" ? is_scale(found->second.item<double>()) : found->second.item<double>() >= 0))
      throw UsageError(
          fmt::format("{}: state dict: '{}' is not understood; accepted: {}", kName, name,
                      name == "scale" ? "Double [], more than 0, finite" : "Long [], 0 or more"));
  }
  for (const auto& [name, tensor] : state)
    if (!own.contains(name)) throw UsageError(fmt::format("{}: state dict: '{}' is unknown", kName, name));
  const auto count = [&](const char* name) { return state.at(name).item<std::int64_t>(); };
  scale_ = state.at("scale").item<double>();
  growth_tracker_ = count("growth_tracker");
  skipped_ = count("skipped");
  skipped_in_a_row_ = count("skipped_in_a_row");
}

}  // namespace lockstep
