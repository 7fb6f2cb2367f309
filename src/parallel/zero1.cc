#include "lockstep/parallel/zero1.h"

#include <algorithm>

#include "grad/torch_types.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// The elements of a bucket that are this rank's.
ElementRange own_range(const Bucket& bucket) {
  const std::size_t count = own_part(bucket).count;
  const std::size_t begin = count * static_cast<std::size_t>(bucket.group.rank());
  return {begin, begin + count};
}

// What a tensor and a run of the bucket have in common, counted from the tensor's first element.
ElementRange common(const BucketTensor& tensor, const ElementRange& range) {
  const auto within = [&](std::size_t at) {
    return std::clamp(at, tensor.offset, tensor.offset + tensor.count) - tensor.offset;
  };
  return {within(range.begin), within(range.end)};
}

// A tensor in `memory`: flat, or of the sizes and strides of `like`.
torch::Tensor flat_at(std::byte* data, std::size_t count, DType dtype, const CommMemory& memory) {
  return tensor_at({data, count, dtype, memory.device()}, std::make_shared<CommMemory>(memory));
}
torch::Tensor formed_at(std::byte* data, DType dtype, const torch::Tensor& like, const CommMemory& memory) {
  return tensor_at({data, static_cast<std::size_t>(like.numel()), dtype, memory.device()}, like.sizes(),
                   like.strides(), std::make_shared<CommMemory>(memory));
}

struct Bytes {
  const std::byte* begin;
  const std::byte* end;
};

// From a tensor's first element to its last.
Bytes bytes_of(const torch::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* const begin = static_cast<const std::byte*>(tensor.data_ptr());
  return {begin, begin + (static_cast<std::size_t>(last) + 1) * tensor.element_size()};
}

}  // namespace

Zero1::Zero1(const ModuleRef& module, Group group, const StrategyOptions& options)
    : Replicated(
          {.name = "Zero1",
           .exchange = reduce_scatter_exchange({.algorithm = options.algorithm, .order = options.order}),
           .keep_layout = true},
          module, std::move(group), options),
      parameters_(parameters()),
      slices_(parameters_.size()),
      gradients_(parameters_.size()) {
  refuse_shared_memory();
  move_in();
}

// Each gets memory of its own, so tensors that share some would part without a word.
void Zero1::refuse_shared_memory() const {
  std::vector<NamedTensor> all;
  for (const auto& list : {module().named_parameters(), module().named_buffers()})
    for (const auto& entry : list)
      if (entry.value().defined() && entry.value().numel() > 0) all.push_back({entry.key(), entry.value()});
  for (const auto& [name, tensor] : parameters_) {
    if (tensor.numel() == 0) continue;
    const Bytes own = bytes_of(tensor);
    for (const NamedTensor& other : all) {
      if (other.tensor.is_same(tensor)) continue;
      const Bytes its = bytes_of(other.tensor);
      if (own.begin < its.end && its.begin < own.end)
        throw UsageError("Zero1: '" + name + "' and '" + other.name +
                         "' are two tensors on the same memory, which would become two; to tie weights, "
                         "register one tensor, or one module, under both names");
    }
  }
}

// Parameters get a place in comm memory, and slices theirs in both.
void Zero1::move_in() {
  const torch::NoGradGuard no_grad;
  for (const Bucket& bucket : reducer().buckets()) {
    const DType dtype = dtype_of(parameters_[bucket.tensors.front().parameter].tensor, "it");
    const std::size_t size = size_of(dtype), gradient_size = size_of(bucket.data.dtype);
    shards_.push_back({bucket, dtype, group().allocate(bucket.data.count * size, bucket.data.device)});
    const CommMemory& memory = shards_.back().memory;
    for (const BucketTensor& tensor : bucket.tensors) {
      torch::Tensor& parameter = parameters_[tensor.parameter].tensor;
      std::byte* const place = memory.as<std::byte>() + tensor.offset * size;
      const torch::Tensor moved = formed_at(place, dtype, parameter, memory);
      moved.copy_(parameter);
      parameter.set_data(moved);
      const ElementRange own = common(tensor, own_range(bucket));
      std::byte* const gradient = static_cast<std::byte*>(bucket.data.data) + tensor.offset * gradient_size;
      slices_[tensor.parameter] = {
          .name = tensor.name,
          .whole = parameter.sizes().vec(),
          .elements = own,
          .parameter = flat_at(place + own.begin * size, own.count(), dtype, memory)};
      gradients_[tensor.parameter] =
          flat_at(gradient + own.begin * gradient_size, own.count(), bucket.data.dtype, reducer().memory());
    }
  }
}

std::span<const Slice> Zero1::slices() {
  slices_are_read();
  check_in_place();  // before anybody updates what is not the module's any more
  for (std::size_t i = 0; i < slices_.size(); ++i)
    slices_[i].gradient = reducer().used(i) ? gradients_[i] : torch::Tensor();
  return slices_;
}

void Zero1::check_in_place() const {
  for (const Shard& shard : shards_)
    for (const BucketTensor& tensor : shard.bucket.tensors)
      if (tensor.count > 0 && parameters_[tensor.parameter].tensor.data_ptr() !=
                                  shard.memory.as<std::byte>() + tensor.offset * size_of(shard.dtype))
        throw UsageError(
            "parameter '" + tensor.name +
            "' was given other memory after the model was wrapped, so its updates would be lost; "
            "change it in place (copy_), or make a new Zero1");
}

// Everybody's part of something that is laid out as the bucket, in place.
Work Zero1::gather(const Shard& shard, std::byte* memory, DType dtype) const {
  const Buffer& data = shard.bucket.data;
  const ElementRange own = own_range(shard.bucket);
  return group().all_gather_async(
      ConstBuffer{memory + own.begin * size_of(dtype), own.count(), dtype, data.device},
      Buffer{memory, data.count, dtype, data.device}, {.purpose = shard.bucket.purpose});
}

void Zero1::share_updates() {
  check_in_place();
  ExchangeLog& log = reducer().log();
  log.share_begin_ns = now_ns();
  std::vector<Work> works;
  if (group().size() > 1)
    for (const Shard& shard : shards_)
      works.push_back(gather(shard, shard.memory.as<std::byte>(), shard.dtype));
  when_all(works).wait();
  log.share_end_ns = now_ns();
  log.shared.clear();
  for (std::size_t b = 0; b < works.size(); ++b) {
    const WorkTiming timing = works[b].timing();
    log.shared.push_back({.bucket = static_cast<int>(b),
                          .bytes = shards_[b].bucket.data.count * size_of(shards_[b].dtype),
                          .ready_ns = log.share_begin_ns,
                          .start_ns = timing.begin_ns,
                          .running_ns = timing.running_ns,
                          .end_ns = timing.end_ns,
                          .algorithm = timing.algorithm});
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i)  // a graph that saved it must notice
    if (reducer().used(i)) parameters_[i].tensor.unsafeGetTensorImpl()->bump_version();
}

void Zero1::join(const std::vector<torch::Tensor>& parts, const Take& take) {
  for (const Shard& shard : shards_) {
    const auto defined = [&](const BucketTensor& tensor) { return parts[tensor.parameter].defined(); };
    const std::span<const BucketTensor> tensors = shard.bucket.tensors;
    const auto first = std::find_if(tensors.begin(), tensors.end(), defined);
    if (first == tensors.end()) continue;
    const DType dtype =
        dtype_of(parts[first->parameter], "it");  // an optimizer's may be wider than the bucket's
    const CommMemory memory =
        group().allocate(shard.bucket.data.count * size_of(dtype), shard.bucket.data.device);
    const auto whole = [&](const BucketTensor& tensor) {
      return formed_at(memory.as<std::byte>() + tensor.offset * size_of(dtype), dtype,
                       parameters_[tensor.parameter].tensor, memory);
    };
    for (const BucketTensor& tensor : tensors)
      if (const torch::Tensor& part = parts[tensor.parameter]; part.defined())
        whole(tensor)
            .as_strided({static_cast<std::int64_t>(tensor.count)}, {1})
            .narrow(0, static_cast<std::int64_t>(slices_[tensor.parameter].elements.begin), part.numel())
            .copy_(part);
    if (group().size() > 1) gather(shard, memory.as<std::byte>(), dtype).wait();
    for (const BucketTensor& tensor : tensors)
      if (defined(tensor)) take(tensor.parameter, whole(tensor));
  }
}

torch::Tensor Zero1::cut(std::size_t i, const torch::Tensor& whole) const {
  const torch::Tensor& parameter = parameters_[i].tensor;
  const ElementRange& own = slices_[i].elements;
  return torch::empty_strided(parameter.sizes(), parameter.strides(), whole.options())
      .copy_(whole)
      .as_strided({parameter.numel()}, {1})
      .narrow(0, static_cast<std::int64_t>(own.begin), static_cast<std::int64_t>(own.count()));
}

void Zero1::add_parts(std::span<double> values) {
  if (group().size() > 1) group().all_reduce(values, {.purpose = "figures of the parameters"});
}

}  // namespace lockstep
