#include "parallel/norm_sums.h"

#include <ATen/ATen.h>

#include <cstddef>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Everybody's number and two lists, in rank order.
class Gathered {
 public:
  Gathered(const Group& group, double number, const torch::Tensor& first, const torch::Tensor& second,
           const std::string& purpose)
      : channels_(static_cast<std::size_t>(first.numel())), all_(stride() * size_of(group)) {
    const torch::Tensor own = torch::cat({torch::full({1}, number, torch::kFloat64), first, second});
    group.all_gather(ConstBuffer(own.data_ptr<double>(), stride(), DType::f64), buffer(all_),
                     {.purpose = purpose});
  }
  std::size_t ranks() const { return all_.size() / stride(); }
  std::size_t channels() const { return channels_; }
  double number(std::size_t r) const { return all_[r * stride()]; }
  double first(std::size_t r, std::size_t c) const { return all_[r * stride() + 1 + c]; }
  double second(std::size_t r, std::size_t c) const { return all_[r * stride() + 1 + channels_ + c]; }

 private:
  static std::size_t size_of(const Group& group) { return static_cast<std::size_t>(group.size()); }
  std::size_t stride() const { return 1 + 2 * channels_; }

  std::size_t channels_;
  std::vector<double> all_;
};

torch::Tensor on_host(const torch::Tensor& tensor) { return tensor.to(torch::kCPU, torch::kFloat64); }

torch::Tensor zeros(std::size_t channels) {
  return torch::zeros({static_cast<std::int64_t>(channels)}, torch::kFloat64);
}

}  // namespace

// Of parts with counts n, means m and variances v the whole has the mean Σnm / N and the variance
// Σn(v + (m - mean)²) / N: no difference of large numbers.
NormMoments moments_of_all(const Group& group, const torch::Tensor& input, bool counts,
                           const std::string& name) {
  const std::int64_t channels = input.size(1);
  const std::int64_t own_count = counts && channels > 0 ? input.numel() / channels : 0;
  torch::Tensor own_mean = zeros(static_cast<std::size_t>(channels)), own_variance = own_mean;
  if (own_count > 0) {
    const auto [mean, variance] = at::batch_norm_update_stats(input, {}, {}, 0);
    own_mean = on_host(mean);
    own_variance = on_host(variance);
  }
  const Gathered all(group, static_cast<double>(own_count), own_mean, own_variance,
                     "the statistics of " + name);
  NormMoments whole{.count = 0, .mean = zeros(all.channels()), .variance = zeros(all.channels())};
  for (std::size_t r = 0; r < all.ranks(); ++r) whole.count += all.number(r);
  if (whole.count == 1)
    throw UsageError(name +
                     ": all workers together have one value a channel, of which there is no variance; "
                     "accepted: two or more");
  if (whole.count == 0) return whole;
  auto* const means = whole.mean.data_ptr<double>();
  auto* const variances = whole.variance.data_ptr<double>();
  for (std::size_t c = 0; c < all.channels(); ++c) {
    for (std::size_t r = 0; r < all.ranks(); ++r) means[c] += all.number(r) * all.first(r, c);
    means[c] /= whole.count;
    for (std::size_t r = 0; r < all.ranks(); ++r) {
      const double apart = all.first(r, c) - means[c];
      variances[c] += all.number(r) * (all.second(r, c) + apart * apart);
    }
    variances[c] /= whole.count;
  }
  return whole;
}

// What a lane of weight 0 computed may be anything, NaN too.
NormGradients gradients_of_all(const Group& group, const NormGradients& own, double weight,
                               const std::string& name) {
  const torch::Tensor nothing = zeros(static_cast<std::size_t>(own.plain.numel()));
  const Gathered all(group, weight, weight == 0 ? nothing : on_host(own.plain),
                     weight == 0 ? nothing : on_host(own.normalised), "the gradients of " + name);
  NormGradients whole{.plain = zeros(all.channels()), .normalised = zeros(all.channels())};
  if (weight == 0) return whole;
  auto* const plain = whole.plain.data_ptr<double>();
  auto* const normalised = whole.normalised.data_ptr<double>();
  for (std::size_t r = 0; r < all.ranks(); ++r) {
    const double share = all.number(r) / weight;
    for (std::size_t c = 0; c < all.channels(); ++c) {
      plain[c] += share * all.first(r, c);
      normalised[c] += share * all.second(r, c);
    }
  }
  return whole;
}

}  // namespace lockstep
