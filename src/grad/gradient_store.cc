#include "grad/gradient_store.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "grad/finite.h"
#include "grad/torch_types.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kBucketAlignment = 4096;
// weight × gradient in the gradient's type. 16-bit ones are multiplied in f32: the weight itself may have no
// 16-bit value.
torch::Tensor weighted(const torch::Tensor& gradient, double weight) {
  if (gradient.element_size() > 2) return gradient * weight;
  return (gradient.to(torch::kFloat32) * weight).to(gradient.scalar_type());
}

bool is_view_of(const torch::Tensor& grad, const torch::Tensor& view) {
  return grad.defined() && view.defined() && !grad.is_sparse() && grad.data_ptr() == view.data_ptr() &&
         grad.numel() == view.numel();
}

}  // namespace

double weight_scale(DType dtype, double total_weight) {
  return size_of(dtype) == 2 ? std::exp2(-std::ceil(std::log2(total_weight))) : 1;
}

GradientStore::GradientStore(const std::vector<NamedTensor>& parameters, Group group,
                             std::optional<std::size_t> reuse, bool nothing_alone)
    : parameters_(parameters), group_(std::move(group)) {
  for (const NamedTensor& parameter : parameters_) {
    const Device device = device_of(parameter.tensor, "parameter '" + parameter.name + "'");
    if (&parameter == &parameters_.front()) device_ = device;
    if (!(device == device_))
      throw UsageError("parameter '" + parameter.name + "' is on " + to_string(device) + ", '" +
                       parameters_.front().name + "' on " + to_string(device_) +
                       "; accepted: all on one device");
  }
  if (reuse) slots_.emplace(group_, device_, *reuse);
  stays_ = nothing_alone && !reuse && group_.size() == 1 && device_.kind != Device::Kind::cpu;
}

// A tensor of its own on the bucket's memory, no view in autograd's sense: zero_grad() may detach it.
torch::Tensor GradientStore::view_of(const torch::Tensor& bucket, std::size_t parameter,
                                     const BucketLayout& layout) const {
  const Placement place = layout.placements[parameter];
  const torch::Tensor& like = parameters_[parameter].tensor;
  return tensor_at({static_cast<std::byte*>(bucket.data_ptr()) + place.offset * bucket.element_size(),
                    static_cast<std::size_t>(like.numel()),
                    layout.buckets[static_cast<std::size_t>(place.bucket)].dtype, device_},
                   like.sizes(), like.strides(), std::make_shared<torch::Tensor>(bucket));
}

GradientStore::Set GradientStore::make_set(const BucketLayout& layout, const CommMemory& memory) const {
  Set set;
  const auto owner = std::make_shared<CommMemory>(memory);
  std::size_t begin = 0;
  for (const BucketPlan& plan : layout.buckets) {
    if (memory.data() == nullptr)
      set.buckets.push_back(torch::empty(
          {static_cast<std::int64_t>(plan.count)},
          torch::TensorOptions().dtype(scalar_type_of(plan.dtype)).device(torch_device(device_))));
    else
      set.buckets.push_back(
          tensor_at({memory.as<std::byte>() + begin, plan.count, plan.dtype, device_}, owner));
    begin += (plan.count * size_of(plan.dtype) + kBucketAlignment - 1) / kBucketAlignment * kBucketAlignment;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    set.views.push_back(
        view_of(set.buckets[static_cast<std::size_t>(layout.placements[i].bucket)], i, layout));
  set.filled.assign(parameters_.size(), 0);
  return set;
}

void GradientStore::set_layout(BucketLayout layout) {
  std::vector<std::string> labels;
  for (const BucketPlan& plan : layout.buckets) {
    const std::string& first = parameters_[static_cast<std::size_t>(plan.members.front())].name;
    const std::string& last = parameters_[static_cast<std::size_t>(plan.members.back())].name;
    labels.push_back("bucket " + std::to_string(labels.size() + 1) + " of " +
                     std::to_string(layout.buckets.size()) + " (" + first +
                     (plan.members.size() > 1 ? " … " + last : "") + ")");
  }
  std::size_t bytes = 0;
  std::vector<std::size_t> offsets;
  for (const BucketPlan& plan : layout.buckets) {
    offsets.push_back(bytes);
    bytes += (plan.count * size_of(plan.dtype) + kBucketAlignment - 1) / kBucketAlignment * kBucketAlignment;
  }
  CommMemory memory;
  Set set;
  if (stays_ && memory_.data() == nullptr) {
    set = {.buckets = std::vector<torch::Tensor>(layout.buckets.size()),
           .views = std::vector<torch::Tensor>(parameters_.size()),
           .filled = std::vector<char>(parameters_.size(), 0)};
  } else if (slots_) {
    set = {.buckets = std::vector<torch::Tensor>(layout.buckets.size()),
           .views = std::vector<torch::Tensor>(parameters_.size()),
           .filled = std::vector<char>(parameters_.size(), 0)};
    placed_.assign(layout.buckets.size(), {});
    own_.clear();
    for (const BucketPlan& plan : layout.buckets)
      own_.push_back(torch::zeros(
          {static_cast<std::int64_t>(plan.count / static_cast<std::size_t>(group_.size()))},
          torch::TensorOptions().dtype(scalar_type_of(plan.dtype)).device(torch_device(device_))));
  } else {
    memory = group_.allocate(std::max(bytes, kBucketAlignment), device_);
    set = make_set(layout, memory);
  }
  if (!sets_.empty()) {
    set.filled = sets_[0].filled;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      torch::Tensor& grad = parameters_[i].tensor.mutable_grad();
      if (!is_view_of(grad, sets_[0].views[i])) continue;
      set.views[i].copy_(grad);
      grad = set.views[i];
    }
  }
  sets_.clear();  // the spare ones are made when they are needed
  sets_.push_back(std::move(set));
  top_ = 0;
  roots_ = {0};
  memory_ = std::move(memory);
  offsets_ = std::move(offsets);
  layout_ = std::move(layout);
  labels_ = std::move(labels);
  tensors_.clear();
  for (const BucketPlan& plan : layout_.buckets) {
    std::vector<BucketTensor>& list = tensors_.emplace_back();
    for (const int m : plan.members) {
      const auto i = static_cast<std::size_t>(m);
      list.push_back({.name = parameters_[i].name,
                      .parameter = i,
                      .offset = layout_.placements[i].offset,
                      .count = static_cast<std::size_t>(parameters_[i].tensor.numel())});
    }
  }
  ++layouts_;
}

void GradientStore::check(std::size_t parameter) const {
  torch::Tensor& grad = parameters_[parameter].tensor.mutable_grad();
  if (!grad.is_sparse()) return;
  grad = torch::Tensor();
  throw UsageError("the gradient of '" + parameters_[parameter].name + "' is sparse; accepted: dense ones");
}

std::size_t GradientStore::layout_bytes() const {
  std::size_t bytes = kBucketAlignment;
  for (std::size_t b = 0; b < layout_.buckets.size(); ++b)
    bytes =
        offsets_[b] + (layout_.buckets[b].count * size_of(layout_.buckets[b].dtype) + kBucketAlignment - 1) /
                          kBucketAlignment * kBucketAlignment;
  return bytes;
}

void GradientStore::place(int bucket) {
  const auto b = static_cast<std::size_t>(bucket);
  if (stays_ && memory_.data() == nullptr) {
    memory_ = group_.allocate(layout_bytes(), device_);
    Set set = make_set(layout_, memory_);
    set.filled = sets_[0].filled;
    sets_[0] = std::move(set);
  }
  if (!slots_ || placed_[b].data() != nullptr) return;
  const BucketPlan& plan = layout_.buckets[b];
  placed_[b] = slots_->take(plan.count * size_of(plan.dtype));
  Set& set = sets_[0];
  set.buckets[b] = tensor_at({placed_[b].data(), plan.count, plan.dtype, device_},
                             std::make_shared<CommMemory>(placed_[b]));
  for (const int m : plan.members)
    set.views[static_cast<std::size_t>(m)] = view_of(set.buckets[b], static_cast<std::size_t>(m), layout_);
}

Work GradientStore::leave(int bucket, Work exchange) {
  if (!slots_) return exchange;
  const auto b = static_cast<std::size_t>(bucket);
  const Buffer from = lockstep::own_part(this->bucket(bucket));
  const Work kept = exchange.then([from, to = own_[b], slot = placed_[b]] {
    if (from.count == 0) return;  // nothing, which may lie nowhere
    if (from.device.kind == Device::Kind::cpu) {
      std::memcpy(to.data_ptr(), from.data, from.bytes());
    } else {
      const torch::NoGradGuard no_grad;
      torch::Tensor(to).copy_(tensor_at(from, nullptr), /*non_blocking=*/true);
    }
  });
  for (const int m : layout_.buckets[b].members) {
    publish(static_cast<std::size_t>(m), false);  // else a view of it would hold the memory that others get
    sets_[0].views[static_cast<std::size_t>(m)] = torch::Tensor();
  }
  sets_[0].buckets[b] = torch::Tensor();
  slots_->leave(std::move(placed_[b]), kept);
  placed_[b] = {};
  return kept;
}

torch::Tensor GradientStore::own_part(int bucket) const {
  if (slots_) return own_[static_cast<std::size_t>(bucket)];
  return tensor_at(lockstep::own_part(this->bucket(bucket)), std::make_shared<CommMemory>(memory_));
}

void GradientStore::adopt(std::size_t parameter) {
  if (stay()) return check(parameter);
  place(layout_.placements[parameter].bucket);
  torch::Tensor& grad = parameters_[parameter].tensor.mutable_grad();
  const torch::Tensor& view = sets_[0].views[parameter];
  if (is_view_of(grad, view)) return;
  check(parameter);
  const torch::NoGradGuard no_grad;
  view.copy_(grad);
  grad = view;
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

void GradientStore::publish(std::size_t parameter, bool there) {
  torch::Tensor& grad = parameters_[parameter].tensor.mutable_grad();
  if (there && stay()) return;
  grad = there ? sets_[0].views[parameter] : torch::Tensor();
}

std::size_t GradientStore::bytes() const {
  std::size_t bytes = slots_                                ? slots_->bytes()
                      : stays_ && memory_.data() == nullptr ? layout_bytes()  // those that libtorch holds
                                                            : memory_.bytes();
  for (const torch::Tensor& own : own_) bytes += own.nbytes();
  for (std::size_t level = 1; level < sets_.size(); ++level)
    for (const torch::Tensor& bucket : sets_[level].buckets) bytes += bucket.nbytes();
  return bytes;
}

std::vector<Buffer> GradientStore::reduced(int bucket) const {
  if (!stay()) return own_tensors(this->bucket(bucket));
  std::vector<Buffer> list;
  for (const int m : layout_.buckets[static_cast<std::size_t>(bucket)].members) {
    const torch::Tensor& grad = parameters_[static_cast<std::size_t>(m)].tensor.grad();
    if (grad.defined())
      list.push_back(
          buffer_of(grad, "the gradient of '" + parameters_[static_cast<std::size_t>(m)].name + "'"));
  }
  return list;
}

Bucket GradientStore::bucket(int index) const {
  const auto b = static_cast<std::size_t>(index);
  const BucketPlan& plan = layout_.buckets[b];
  void* const data = slots_                                ? placed_[b].data()
                     : stay() || memory_.data() == nullptr ? nullptr
                                                           : memory_.as<std::byte>() + offsets_[b];
  return {.index = index,
          .data = {data, plan.count, plan.dtype, device_},
          .tensors = tensors_[b],
          .layout = layouts_,
          .group = group_,
          .purpose = labels_[b]};
}

}  // namespace lockstep
