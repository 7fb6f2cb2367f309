#include "lockstep/optim/clip.h"

#include <ATen/ops/_foreach_mul.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "grad/torch_types.h"
#include "lockstep/base/error.h"
#include "optim/device_norms.h"

namespace lockstep {
namespace {

// Eight sums side by side, so that the compiler may add them with one instruction; joined in pairs.
template <class T, class Term>
double sum_of(const T* x, std::int64_t count, Term&& term) {
  std::array<double, 8> lanes{};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (std::size_t k = 0; k < 8; ++k)
      lanes[k] += term(static_cast<double>(x[i + static_cast<std::int64_t>(k)]));
  for (std::size_t k = 0; i < count; ++i, ++k) lanes[k] += term(static_cast<double>(x[i]));
  for (std::size_t half = 4; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  return lanes[0];
}

template <class T>
double power_sum(const T* x, std::int64_t count, double p) {
  if (p == 2) return sum_of(x, count, [](double v) { return v * v; });
  return sum_of(x, count, [p](double v) { return std::pow(std::abs(v), p); });
}

template <class T>
double largest(const T* x, std::int64_t count) {
  double most = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double v = std::abs(static_cast<double>(x[i]));
    if (!(v <= most)) most = v;  // a NaN stays
    if (std::isnan(most)) break;
  }
  return most;
}

template <class T>
double part_of(const torch::Tensor& dense, double p) {
  const T* const x = dense.data_ptr<T>();
  return std::isinf(p) ? largest(x, dense.numel()) : power_sum(x, dense.numel(), p);
}

// Those of gradients on a device that has kernels for it: taken there, and fetched together.
class NormsThere {
 public:
  NormsThere(std::size_t count, double p) : count_(count), p_(p) {}

  // False: the device of this one has no kernels.
  bool add(std::size_t i, const torch::Tensor& gradient) {
    const Device device = device_of(gradient, "a gradient");
    const kernel::DeviceNorms* const norms =
        device.kind == Device::Kind::cpu ? nullptr : kernel::device_norms(device.kind);
    if (norms == nullptr) return false;
    const auto here = torch::TensorOptions().dtype(torch::kFloat64).device(gradient.device());
    if (!sums_.defined()) sums_ = torch::zeros({static_cast<std::int64_t>(count_)}, here);
    const torch::Tensor dense = gradient.is_non_overlapping_and_dense() ? gradient : gradient.contiguous();
    const ConstBuffer data = buffer_of(dense, "a gradient");
    const torch::Tensor partials =
        torch::empty({static_cast<std::int64_t>(norms->partial_sums(data.count))}, here);
    norms->power_sums(std::span(&data, 1), p_, sums_.data_ptr<double>() + i, partials.data_ptr<double>());
    return true;
  }
  // Waits for the device: who clips is told the norm.
  void fetch(std::vector<double>& norms) const {
    if (!sums_.defined()) return;
    const torch::Tensor here = sums_.cpu();
    for (std::size_t i = 0; i < count_; ++i) norms[i] += here.data_ptr<double>()[i];
  }

 private:
  std::size_t count_;
  double p_;
  torch::Tensor sums_;
};

// One launch for all of them on a GPU.
void scale_all(std::span<const Slice> slices, double scale) {
  std::vector<torch::Tensor> on_gpu;
  for (const Slice& slice : slices) {
    if (!slice.gradient.defined()) continue;
    if (slice.gradient.is_cuda())
      on_gpu.push_back(slice.gradient);
    else
      torch::Tensor(slice.gradient).mul_(scale);
  }
  if (!on_gpu.empty()) at::_foreach_mul_(on_gpu, scale);
}

double part(const torch::Tensor& gradient, double p) {
  // The norm is for the host, which adds it up in its order where the device has no kernels for it.
  torch::Tensor dense = (gradient.is_non_overlapping_and_dense() ? gradient : gradient.contiguous()).cpu();
  if (dense.scalar_type() == torch::kFloat64) return part_of<double>(dense, p);
  return part_of<float>(dense.to(torch::kFloat32), p);
}

}  // namespace

double clip_grad_norm_(GradientSource& source, double max_norm, double norm_type) {
  if (!(max_norm >= 0))
    throw UsageError("clip_grad_norm_: max_norm = " + std::to_string(max_norm) + "; accepted: 0 or more");
  if (!(norm_type > 0))
    throw UsageError("clip_grad_norm_: norm_type = " + std::to_string(norm_type) +
                     "; accepted: above 0, or infinity");
  source.synchronize();
  const torch::NoGradGuard no_grad;
  const std::span<const Slice> slices = source.slices();
  std::vector<torch::Tensor> parts;
  for (const Slice& slice : slices) parts.push_back(slice.gradient);
  std::vector<double> norms(parts.size(), 0);
  NormsThere there(parts.size(), norm_type);
  source.join(parts, [&](std::size_t i, const torch::Tensor& whole) {
    if (!there.add(i, whole)) norms[i] = part(whole, norm_type);
  });
  there.fetch(norms);
  double total = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].defined()) continue;
    if (!std::isinf(norm_type))
      total += norms[i];
    else if (!(norms[i] <= total) && !std::isnan(total))  // a NaN stays
      total = norms[i];
  }
  const double norm = std::isinf(norm_type) ? total
                      : norm_type == 2      ? std::sqrt(total)
                                            : std::pow(total, 1 / norm_type);
  const double scale = max_norm / (norm + 1e-6);
  if (!(scale >= 1))  // a norm that is not a number makes all gradients so, as it should: nothing is hidden
    scale_all(slices, scale);
  return norm;
}

void clip_grad_value_(GradientSource& source, double clip_value) {
  if (!(clip_value >= 0))
    throw UsageError("clip_grad_value_: clip_value = " + std::to_string(clip_value) +
                     "; accepted: 0 or more");
  source.synchronize();
  const torch::NoGradGuard no_grad;
  for (const Slice& slice : source.slices()) {
    torch::Tensor gradient = slice.gradient;
    if (!gradient.defined()) continue;
    // f16 may have no such number, and on the processor libtorch refuses it then, or f16 at all.
    if (gradient.scalar_type() == torch::kHalf && gradient.is_cpu())
      gradient.copy_(gradient.to(torch::kFloat32).clamp_(-clip_value, clip_value));
    else
      gradient.clamp_(-clip_value, clip_value);
  }
}

}  // namespace lockstep
