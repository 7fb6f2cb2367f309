// A compressor whose results become momenta: what it shares with its optimizer (optim/onebit_adam.h).
#include <fmt/format.h>

#include <algorithm>

#include "compress/compressor.h"
#include "compress/momentum.h"
#include "lockstep/base/error.h"

namespace lockstep::compress {

// One optimizer has one beta1 and one dense phase, and a frozen variance is of a mean that is what it was in
// it.
void Compressor::settle_momenta() {
  for (const Line& line : lines_) {
    if (!line.method || !line.method->beta1()) continue;
    if (!momenta_) momenta_ = {.beta1 = *line.method->beta1(), .warmup = line.warmup};
    if (momenta_->beta1 != *line.method->beta1() || momenta_->warmup != line.warmup)
      throw UsageError(fmt::format(
          "--compress {}: rules with onebit-adam of several beta1 or warmup; accepted: the same in all",
          options_.method));
  }
  if (!momenta_) return;
  for (const Line& line : lines_)
    if (line.method && !line.method->beta1())
      throw UsageError(fmt::format("--compress {}: {} beside onebit-adam; accepted: onebit-adam, none",
                                   options_.method, line.method->name()));
}

bool Compressor::carries(std::size_t parameter) const {
  return momenta_->begun && line_of_[parameter] >= 0 &&
         lines_[static_cast<std::size_t>(line_of_[parameter])].method != nullptr;
}

bool Compressor::is_due() const { return !momenta_->begun && last_step_ + 1 >= momenta_->warmup; }

// In the order of the parameter's memory, as its gradient lies in buckets.
void Compressor::take(std::size_t parameter, const torch::Tensor& momentum) {
  if (line_of_.at(parameter) < 0) return;
  const auto& [name, tensor] = parameters_[parameter];
  const torch::Tensor laid_out =
      torch::empty_strided(tensor.sizes(), tensor.strides(), torch::kFloat32).copy_(momentum);
  const std::span<float> own = book_.shared(kMomentum, name);
  std::copy_n(laid_out.data_ptr<float>(), own.size(), own.begin());
}

void Compressor::begin_momenta() { momenta_->begun = true; }

}  // namespace lockstep::compress
