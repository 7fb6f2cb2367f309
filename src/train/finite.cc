#include "train/finite.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/checkpoint/state.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMostTold = 10;  // steps; what a broken run prints is bounded

// A sum that is finite has finite terms, and takes one pass without a copy; one that is not may have
// overflowed.
bool is_finite(const torch::Tensor& tensor) {
  if (tensor.scalar_type() == torch::kFloat32 && std::isfinite(tensor.sum().item<double>())) return true;
  return !tensor.is_floating_point() || at::isfinite(tensor).all().item<bool>();
}

}  // namespace

std::string first_not_finite(Strategy& strategy) {
  const c10::NoGradGuard no_grad;
  const auto each = strategy.each_whole();
  for (const auto& [name, tensor] : model_state(strategy.module())) {
    each.bring(tensor);
    if (!is_finite(tensor)) return name;
  }
  return "";
}

FiniteWatch::FiniteWatch(std::string on_nan, Strategy& strategy, Loss loss, EventSink sink)
    : on_nan_(std::move(on_nan)),
      strategy_(strategy),
      loss_(loss),
      model_(strategy.module()),
      sink_(std::move(sink)) {
  if (on_nan_ != "skip") return;
  strategy_.watch_overflow(true);
  buffers_ = model_.buffers();
  kept_.resize(buffers_.size());
}

void FiniteWatch::begin_step() {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers_.size(); ++i) kept_[i] = buffers_[i].clone();
}

bool FiniteWatch::accept(double loss, const std::vector<int>& lanes) {
  found_.clear();
  if (!std::isfinite(loss))
    found_ =
        fmt::format("the loss is {} (lane{} {})", loss, lanes.size() == 1 ? "" : "s", fmt::join(lanes, ", "));
  else if (on_nan_ == "skip" && loss_ == Loss::plain && strategy_.overflowed())
    found_ = "a gradient is not finite";
  if (found_.empty() || on_nan_ == "go-on") return true;
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(kept_[i]);
  return false;
}

std::string FiniteWatch::end_step(std::int64_t step) {
  if (found_.empty()) return "";
  const std::string weights = first_not_finite(strategy_);
  const std::string text = fmt::format(
      "step {}: {}; {}", step, found_,
      weights.empty() ? "all weights are finite" : "the first weight that is not finite is " + weights);
  if (on_nan_ == "stop" || (on_nan_ == "skip" && !weights.empty())) return text;
  if (++steps_ <= kMostTold && sink_)
    sink_({{"event", "note"},
           {"text", fmt::format("{}; {}{}", text, on_nan_ == "skip" ? "the step is skipped" : "going on",
                                steps_ == kMostTold ? " (and no more is said of such steps)" : "")}});
  return "";
}

}  // namespace lockstep
