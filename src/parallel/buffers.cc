#include "parallel/buffers.h"

#include <algorithm>

namespace lockstep {
namespace {

// One after the other into a flat tensor, or back.
void gather(const std::vector<torch::Tensor>& from, const torch::Tensor& flat) {
  std::int64_t at = 0;
  for (const torch::Tensor& tensor : from) {
    flat.narrow(0, at, tensor.numel()).copy_(tensor.reshape({-1}));
    at += tensor.numel();
  }
}

void scatter(const torch::Tensor& flat, const std::vector<torch::Tensor>& to) {
  std::int64_t at = 0;
  for (const torch::Tensor& tensor : to) {
    tensor.copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
}

std::int64_t elements(const std::vector<torch::Tensor>& tensors) {
  std::int64_t count = 0;
  for (const torch::Tensor& tensor : tensors) count += tensor.numel();
  return count;
}

torch::Tensor flat_in(const CommMemory& memory, std::int64_t count, torch::ScalarType type) {
  return torch::from_blob(
      memory.data(), {count}, [memory](void*) {}, torch::TensorOptions().dtype(type));
}

}  // namespace

// Sums in f64: an average of equal numbers is then that number, and f32 statistics lose nothing on the way.
BufferAverager::BufferAverager(torch::nn::Module& module, Group group) : group_(std::move(group)) {
  for (const torch::Tensor& buffer : module.buffers()) {
    if (!buffer.defined() || buffer.numel() == 0) continue;
    if (buffer.is_floating_point())
      reals_.push_back(buffer);
    else if (!buffer.is_complex())
      wholes_.push_back(buffer);
  }
  const std::int64_t reals = elements(reals_);
  const std::int64_t wholes = elements(wholes_);
  real_memory_ = group_.allocate(static_cast<std::size_t>(std::max<std::int64_t>(reals, 1)) * 8);
  whole_memory_ = group_.allocate(static_cast<std::size_t>(std::max<std::int64_t>(wholes, 1)) * 8);
  real_flat_ = flat_in(real_memory_, reals, torch::kFloat64);
  whole_flat_ = flat_in(whole_memory_, wholes, torch::kInt64);
}

void BufferAverager::begin_lane(int position) {
  const torch::NoGradGuard no_grad;
  const auto all = [&](auto&& each) {
    std::size_t k = 0;
    for (const auto* list : {&reals_, &wholes_})
      for (const torch::Tensor& tensor : *list) each(tensor, k++);
  };
  if (position == 0) {
    sums_.clear();
    largest_ = torch::Tensor();
    begin_.resize(reals_.size() + wholes_.size());
    all([&](const torch::Tensor& tensor, std::size_t k) {
      if (begin_[k].defined())
        begin_[k].copy_(tensor);
      else
        begin_[k] = tensor.clone();
    });
  } else {
    all([&](const torch::Tensor& tensor, std::size_t k) { tensor.copy_(begin_[k]); });
  }
}

void BufferAverager::pack() {
  gather(reals_, real_flat_);
  gather(wholes_, whole_flat_);
}

void BufferAverager::merge_last() {
  sums_[sums_.size() - 2].add_(sums_.back());
  sums_.pop_back();
}

void BufferAverager::end_lane(int position, double weight) {
  const torch::NoGradGuard no_grad;
  pack();
  torch::Tensor own = real_flat_.clone();
  if (weight != 1) own.mul_(weight);
  sums_.push_back(std::move(own));
  for (int done = position + 1; done % 2 == 0; done /= 2) merge_last();
  largest_ = largest_.defined() ? torch::maximum(largest_, whole_flat_) : whole_flat_.clone();
}

void BufferAverager::exchange(int lanes_here, double divisor) {
  const torch::NoGradGuard no_grad;
  if (empty()) return;
  if (lanes_here == 0) {
    pack();  // the counters as they are
    real_flat_.fill_(-0.0);
  } else {
    while (sums_.size() > 1) merge_last();
    real_flat_.copy_(sums_.back());
    whole_flat_.copy_(largest_);
  }
  works_.clear();
  if (!reals_.empty())
    works_.push_back(group_.all_reduce_async(
        Buffer{real_flat_.data_ptr(), static_cast<std::size_t>(real_flat_.numel()), DType::f64},
        {.op = ReduceOp::avg, .divisor = divisor}));
  if (!wholes_.empty())
    works_.push_back(group_.all_reduce_async(
        Buffer{whole_flat_.data_ptr(), static_cast<std::size_t>(whole_flat_.numel()), DType::i64},
        {.op = ReduceOp::max}));
}

void BufferAverager::exchange() {
  if (empty() || group_.size() == 1) return;
  begin_lane(0);
  end_lane(0, 1);
  exchange(1, group_.size());
}

void BufferAverager::finish() {
  if (works_.empty()) return;
  for (const Work& work : works_) work.wait();
  works_.clear();
  const torch::NoGradGuard no_grad;
  scatter(real_flat_, reals_);
  scatter(whole_flat_, wholes_);
}

}  // namespace lockstep
