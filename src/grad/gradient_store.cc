#include "grad/gradient_store.h"

#include <algorithm>
#include <cstring>

#include "grad/finite.h"
#include "grad/torch_types.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

bool is_view_of(const torch::Tensor& grad, const torch::Tensor& view) {
  return grad.defined() && view.defined() && !grad.is_sparse() && grad.data_ptr() == view.data_ptr() &&
         grad.numel() == view.numel();
}

}  // namespace

GradientStore::GradientStore(const std::vector<NamedTensor>& parameters, Group group,
                             std::optional<std::size_t> reuse, bool nothing_alone)
    : parameters_(parameters), group_(std::move(group)) {
  for (const NamedTensor& parameter : parameters_) {
    names_.push_back(parameter.name);
    const Device device = device_of(parameter.tensor, "parameter '" + parameter.name + "'");
    if (&parameter == &parameters_.front()) device_ = device;
    if (!(device == device_))
      throw UsageError("parameter '" + parameter.name + "' is on " + to_string(device) + ", '" +
                       parameters_.front().name + "' on " + to_string(device_) +
                       "; accepted: all on one device");
  }
  know_gradients();
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
  const BucketOffsets offsets = place_buckets(layout);
  for (const BucketPlan& plan : layout.buckets) {
    if (memory.data() == nullptr)
      set.buckets.push_back(torch::empty(
          {static_cast<std::int64_t>(plan.count)},
          torch::TensorOptions().dtype(scalar_type_of(plan.dtype)).device(torch_device(device_))));
    else
      set.buckets.push_back(tensor_at(
          {memory.as<std::byte>() + offsets.begins[set.buckets.size()], plan.count, plan.dtype, device_},
          owner));
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    set.views.push_back(
        view_of(set.buckets[static_cast<std::size_t>(layout.placements[i].bucket)], i, layout));
  set.filled.assign(parameters_.size(), 0);
  return set;
}

// Without memory as yet.
GradientStore::Set GradientStore::empty_set(const BucketLayout& layout) const {
  return {.buckets = std::vector<torch::Tensor>(layout.buckets.size()),
          .views = std::vector<torch::Tensor>(parameters_.size()),
          .filled = std::vector<char>(parameters_.size(), 0)};
}

void GradientStore::set_layout(BucketLayout layout) {
  BucketOffsets offsets = place_buckets(layout);
  CommMemory memory;
  Set set;
  if (stays_ && memory_.data() == nullptr) {
    set = empty_set(layout);
  } else if (slots_) {
    set = empty_set(layout);
    placed_.assign(layout.buckets.size(), {});
    make_own(layout);
  } else {
    memory = group_.allocate(offsets.bytes, device_);
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
  labels_ = bucket_labels(layout_, names_);
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

void GradientStore::know_gradients() {
  found_.clear();
  for (const NamedTensor& parameter : parameters_)
    found_.push_back(parameter.tensor.grad().unsafeGetTensorImpl());
}

void GradientStore::refuse_foreign() const {
  if (stays_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& grad = parameters_[i].tensor.grad();
    if (!grad.defined() || grad.unsafeGetTensorImpl() == found_[i] || is_view_of(grad, sets_[0].views[i]))
      continue;
    if (!grad.is_sparse() && !grad.count_nonzero().is_nonzero()) continue;  // zeroed: nothing is lost
    throw UsageError("parameter '" + names_[i] +
                     "' has a gradient that no backward() brought, so it would not be exchanged, but lost; "
                     "accepted: backward(), or zero_grad() before this step where it is a leftover");
  }
}

void GradientStore::place(int bucket) {
  const auto b = static_cast<std::size_t>(bucket);
  if (stays_ && memory_.data() == nullptr) {
    memory_ = group_.allocate(offsets_.bytes, device_);
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

// The own parts one behind the other, in comm memory: exchanges write them there.
void GradientStore::make_own(const BucketLayout& layout) {
  const torch::NoGradGuard no_grad;
  BucketLayout parts{.buckets = layout.buckets, .placements = {}};
  for (BucketPlan& plan : parts.buckets) plan.count /= static_cast<std::size_t>(group_.size());
  const BucketOffsets offsets = place_buckets(parts, kTensorAlignment);
  own_memory_ = group_.allocate(offsets.bytes, device_);
  own_.clear();
  const auto owner = std::make_shared<CommMemory>(own_memory_);
  for (std::size_t b = 0; b < parts.buckets.size(); ++b)
    own_.push_back(tensor_at({own_memory_.as<std::byte>() + offsets.begins[b], parts.buckets[b].count,
                              parts.buckets[b].dtype, device_},
                             owner)
                       .zero_());
}

// A single worker's exchange may do nothing at all, so nothing is written there.
Buffer GradientStore::own_place(int bucket) const {
  if (!slots_ || group_.size() == 1) return {};
  return buffer_of(own_[static_cast<std::size_t>(bucket)], "it");
}

Work GradientStore::leave(const Bucket& bucket, Work exchange) {
  if (!slots_) return exchange;
  const auto b = static_cast<std::size_t>(bucket.index);
  const Buffer from = own_result(bucket);
  Work kept = std::move(exchange);
  if (from.data != own_[b].data_ptr())
    kept = kept.then([from, to = own_[b], slot = placed_[b]] {
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

void GradientStore::publish(std::size_t parameter, bool there) {
  torch::Tensor& grad = parameters_[parameter].tensor.mutable_grad();
  if (there && stay()) return;
  grad = there ? sets_[0].views[parameter] : torch::Tensor();
}

std::size_t GradientStore::bytes() const {
  std::size_t bytes = slots_                                ? slots_->bytes()
                      : stays_ && memory_.data() == nullptr ? offsets_.bytes  // those that libtorch holds
                                                            : memory_.bytes();
  bytes += own_memory_.bytes();
  for (std::size_t level = 1; level < sets_.size(); ++level)
    for (const torch::Tensor& bucket : sets_[level].buckets) bytes += bucket.nbytes();
  return bytes;
}

std::vector<Buffer> GradientStore::reduced(const Bucket& bucket) const {
  if (!stay()) return own_tensors(bucket);
  std::vector<Buffer> list;
  for (const int m : layout_.buckets[static_cast<std::size_t>(bucket.index)].members) {
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
                                                           : memory_.as<std::byte>() + offsets_.begins[b];
  return {.index = index,
          .data = {data, plan.count, plan.dtype, device_},
          .tensors = tensors_[b],
          .layout = layouts_,
          .group = group_,
          .purpose = labels_[b]};
}

}  // namespace lockstep
