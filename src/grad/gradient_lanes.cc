// How a GradientStore adds lanes up: what gradient_store.h says of sets and subtrees.
#include <algorithm>
#include <bit>
#include <cmath>

#include "grad/gradient_store.h"

namespace lockstep {
namespace {

// weight × gradient in the gradient's type. 16-bit ones are multiplied in f32: the weight itself may have no
// 16-bit value.
torch::Tensor weighted(const torch::Tensor& gradient, double weight) {
  if (gradient.element_size() > 2) return gradient * weight;
  return (gradient.to(torch::kFloat32) * weight).to(gradient.scalar_type());
}

}  // namespace

double weight_scale(DType dtype, double total_weight) {
  return size_of(dtype) == 2 ? std::exp2(-std::ceil(std::log2(total_weight))) : 1;
}

void GradientStore::begin_lane(int position, double total_weight, bool alone) {
  total_weight_ = total_weight;
  adds_up_ = !alone || total_weight != 1;
  if (squares_) squares_->begin_lane(position);
  for (const NamedTensor& parameter : parameters_) parameter.tensor.mutable_grad() = torch::Tensor();
  const auto merge_top = [&] {
    for (const BucketPlan& plan : layout_.buckets) merge(top_ - 1, top_, plan.members);
    --top_;
  };
  const int within = subtree_lanes_ == 0 ? position : position % subtree_lanes_;
  if (within % 2 == 1) return;  // joins the lane before
  if (position == 0) {
    top_ = 0;
    roots_ = {0};
  } else if (within == 0) {  // the subtree before is complete
    while (top_ > roots_.back()) merge_top();
    roots_.push_back(++top_);
  } else {
    for (int carries = std::countr_zero(static_cast<unsigned>(within / 2)); carries > 0; --carries)
      merge_top();
    ++top_;
  }
  if (top_ == sets_.size()) sets_.push_back(make_set(layout_, CommMemory()));
  std::fill(sets_[top_].filled.begin(), sets_[top_].filled.end(), 0);
}

void GradientStore::fold(std::size_t parameter, double weight) {
  torch::Tensor& grad = parameters_[parameter].tensor.mutable_grad();
  check(parameter);
  const torch::NoGradGuard no_grad;
  if (squares_) squares_->add(parameter, grad);
  if (stay()) {
    sets_[0].filled[parameter] = 1;
    return;
  }
  if (top_ == 0) place(layout_.placements[parameter].bucket);
  Set& set = sets_[top_];
  torch::Tensor& view = set.views[parameter];
  if (grad.scalar_type() != view.scalar_type()) grad = grad.to(view.scalar_type());  // added up in f32
  weight *= weight_scale(
      layout_.buckets[static_cast<std::size_t>(layout_.placements[parameter].bucket)].dtype, total_weight_);
  // Scaled and rounded before it is added, as it would be on a worker of its own.
  if (set.filled[parameter] != 0)
    view.add_(weight == 1 ? grad : weighted(grad, weight));
  else if (weight == 1)
    view.copy_(grad);
  else if (grad.element_size() == 2)
    view.copy_(weighted(grad, weight));
  else
    torch::mul_out(view, grad, torch::scalar_tensor(weight, grad.options()));
  set.filled[parameter] = 1;
  grad = torch::Tensor();
}

void GradientStore::merge(std::size_t into, std::size_t from, const std::vector<int>& members) {
  if (members.empty()) return;
  const torch::NoGradGuard no_grad;
  if (into == 0) place(layout_.placements[static_cast<std::size_t>(members[0])].bucket);
  Set& a = sets_[into];
  Set& b = sets_[from];
  const bool all = std::all_of(members.begin(), members.end(), [&](int m) {
    const auto i = static_cast<std::size_t>(m);
    return a.filled[i] != 0 && b.filled[i] != 0;
  });
  if (all) {
    const auto bucket =
        static_cast<std::size_t>(layout_.placements[static_cast<std::size_t>(members[0])].bucket);
    a.buckets[bucket].add_(b.buckets[bucket]);
    return;
  }
  for (const int m : members) {
    const auto i = static_cast<std::size_t>(m);
    if (b.filled[i] == 0) continue;
    if (a.filled[i] != 0)
      a.views[i].add_(b.views[i]);
    else
      a.views[i].copy_(b.views[i]);
    a.filled[i] = 1;
  }
}

void GradientStore::collapse(int bucket, bool lanes) {
  const std::vector<int>& members = layout_.buckets[static_cast<std::size_t>(bucket)].members;
  if (!lanes) adds_up_ = false;
  if (stay()) {
    for (const int m : members) {
      const auto i = static_cast<std::size_t>(m);
      if (!lanes) sets_[0].filled[i] = parameters_[i].tensor.grad().defined() ? 1 : 0;
      if (!lanes && sets_[0].filled[i] != 0) check(i);
    }
    return;
  }
  place(bucket);
  Set& set = sets_[0];
  if (lanes) {
    for (std::size_t level = top_; level > roots_.back(); --level) merge(level - 1, level, members);
  } else {
    for (const int m : members) {
      const auto i = static_cast<std::size_t>(m);
      set.filled[i] = parameters_[i].tensor.grad().defined() ? 1 : 0;
      if (set.filled[i] != 0) adopt(i);
    }
  }
  const torch::NoGradGuard no_grad;
  for (const int m : members)
    if (set.filled[static_cast<std::size_t>(m)] == 0) set.views[static_cast<std::size_t>(m)].fill_(-0.0);
}

bool GradientStore::has(std::size_t parameter) const {
  return std::ranges::any_of(roots_, [&](std::size_t root) { return sets_[root].filled[parameter] != 0; });
}

std::vector<SubtreeSum> GradientStore::sums(int bucket) const {
  const auto b = static_cast<std::size_t>(bucket);
  std::vector<SubtreeSum> sums;
  for (std::size_t k = 0; k < roots_.size(); ++k) {
    const Set& set = sets_[roots_[k]];
    SubtreeSum& sum = sums.emplace_back(
        SubtreeSum{.subtree = first_subtree_ + static_cast<int>(k), .data = set.buckets[b].data_ptr()});
    for (const int m : layout_.buckets[b].members) sum.has.push_back(set.filled[static_cast<std::size_t>(m)]);
  }
  return sums;
}

}  // namespace lockstep
