#include "lockstep/parallel/sharded.h"

#include <algorithm>
#include <exception>

#include "grad/bucket_slots.h"
#include "grad/torch_types.h"
#include "grad/waited_for.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/parallel/construction.h"
#include "parallel/comm_row.h"
#include "parallel/module_tensors.h"
#include "parallel/one_copy.h"
#include "parallel/parameter_units.h"
#include "parallel/shard_home.h"
#include "parallel/unit_parts.h"

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

// Where a model is trained. That all of it is there is looked at later.
Device trained_on(const ModuleRef& module) {
  if (module.pointer() != nullptr)
    for (const NamedTensor& parameter : trained_in(*module.pointer()))
      return device_of(parameter.tensor, "parameter '" + parameter.name + "'");
  return {};
}

// From a tensor's first element to its last.
Bytes extent_of(const torch::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* const begin = static_cast<const std::byte*>(tensor.data_ptr());
  return {begin, begin + (static_cast<std::size_t>(last) + 1) * tensor.element_size()};
}

}  // namespace

Sharded::Sharded(const ModuleRef& module, const Group& group, ShardStage stage,
                 const StrategyOptions& options)
    : Sharded(module, group, stage, options, choose_home(group, stage, options, trained_on(module))) {}

Sharded::Sharded(const ModuleRef& module, const Group& group, ShardStage stage,
                 const StrategyOptions& options, ShardHome home)
    : Replicated(
          {.name = "Sharded",
           .exchange = reduce_scatter_exchange({.algorithm = options.algorithm, .order = options.order}),
           .keep_layout = true,
           .reuse_buckets = stage >= ShardStage::gradients,
           .units = home.units,
           .takes_parts = stage == ShardStage::parameters},
          module, group, options),
      copy_(std::move(home.copy)),
      units_(std::move(home.units)),
      parameters_(parameters()),
      slices_(parameters_.size()),
      gradients_(parameters_.size()) {
  refuse_shared_memory();
  move_in();
}

Sharded::~Sharded() = default;

// Each gets memory of its own, so tensors that share some would part without a word.
void Sharded::refuse_shared_memory() const {
  std::vector<NamedTensor> all;
  for (const auto& list : {module().named_parameters(), module().named_buffers()})
    for (const auto& entry : list)
      if (entry.value().defined() && entry.value().numel() > 0 && has_memory(entry.value()))
        all.push_back({entry.key(), entry.value()});
  for (const auto& [name, tensor] : parameters_) {
    if (tensor.numel() == 0 || !has_memory(tensor)) continue;  // of what was cut that is looked at then
    const Bytes own = extent_of(tensor);
    for (const NamedTensor& other : all) {
      if (other.tensor.is_same(tensor)) continue;
      const Bytes its = extent_of(other.tensor);
      if (own.begin < its.end && its.begin < own.end)
        throw UsageError("Sharded: '" + name + "' and '" + other.name +
                         "' are two tensors on the same memory, which would become two; to tie weights, "
                         "register one tensor, or one module, under both names");
    }
  }
}

// Parameters get a place in comm memory, and slices theirs in both. The workers' are alike by now.
void Sharded::move_in() {
  const torch::NoGradGuard no_grad;
  const CutUnits cut(module());
  const std::vector<Bucket> buckets = reducer().buckets();
  if (units_) {
    units_->make_room(buckets, parameters_);
    units_->reserve(buckets, parameters_);
  }
  CommRow row(group(), buckets.empty() ? Device() : buckets.front().data.device);
  for (const Bucket& bucket : buckets)
    if (!(units_ && units_->has(bucket))) {
      const std::size_t bytes =
          bucket.data.count * size_of(dtype_of(parameters_[bucket.tensors.front().parameter].tensor, "it"));
      copy_ ? copy_->reserve(bytes) : row.reserve(bytes);
    }
  for (const Bucket& bucket : buckets) {
    const bool in_unit = units_ && units_->has(bucket);
    const DType dtype = dtype_of(parameters_[bucket.tensors.front().parameter].tensor, "it");
    const std::size_t bytes = bucket.data.count * size_of(dtype);
    for (const BucketTensor& tensor : bucket.tensors) cut.bring(parameters_[tensor.parameter].tensor);
    shards_.push_back({bucket, dtype,
                       in_unit ? units_->add(bucket, dtype, parameters_)
                       : copy_ ? copy_->allocate(bytes)
                               : row.take(bytes),
                       in_unit});
    cut.hold(shards_.back().memory.bytes() / static_cast<std::size_t>(copy_ ? copy_->workers() : 1));
    if (cut.empty()) continue;  // all of it is there, then: nothing moves halfway
    place(shards_.back());
    for (const BucketTensor& tensor : bucket.tensors) cut.moved(parameters_[tensor.parameter].tensor);
  }
  if (cut.empty())
    for (const Shard& shard : shards_) place(shard);
  cut.join();  // what is not trained
  if (units_) units_->start();
  if (copy_) copy_->meet("until the parameters are there");
}

void Sharded::place(const Shard& shard) {
  const auto& [bucket, dtype, memory, in_unit] = shard;
  const std::size_t size = size_of(dtype);
  const torch::Tensor gradients = reducer().own_part(bucket.index);
  for (const BucketTensor& tensor : bucket.tensors) {
    torch::Tensor& parameter = parameters_[tensor.parameter].tensor;
    const ElementRange own = common(tensor, own_range(bucket));
    // Of the first own element in the own part; of no element anything.
    const std::size_t first = std::max(tensor.offset, own_range(bucket).begin) - own_range(bucket).begin;
    std::byte* place = memory.as<std::byte>() + (tensor.offset + own.begin) * size;
    if (in_unit) {
      std::byte* const part = units_->own_part(bucket);
      place = part == nullptr || own.count() == 0 ? memory.as<std::byte>() : part + first * size;
    } else {
      const torch::Tensor moved =
          formed_at(memory.as<std::byte>() + tensor.offset * size, dtype, parameter, memory);
      if (!copy_ || copy_->fills()) moved.copy_(parameter);
      parameter.set_data(moved);
    }
    slices_[tensor.parameter] = {.name = tensor.name,
                                 .whole = parameter.sizes().vec(),
                                 .elements = own,
                                 .parameter = flat_at(place, own.count(), dtype, memory)};
    if (in_unit)  // without elements too: on every worker the same slices are on disk
      units_->add_slice(tensor.parameter, slices_[tensor.parameter], bucket,
                        own.count() == 0 ? 0 : first * size);
    gradients_[tensor.parameter] =
        own.count() == 0
            ? gradients.narrow(0, 0, 0)
            : gradients.narrow(0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(own.count()));
  }
}

std::span<const Slice> Sharded::slices() {
  slices_are_read();
  check_in_place();  // before anybody updates what is not the module's any more
  for (std::size_t i = 0; i < slices_.size(); ++i)
    slices_[i].gradient = reducer().used(i) ? gradients_[i] : torch::Tensor();
  return slices_;
}

SliceStore* Sharded::store() { return units_ ? units_->store() : nullptr; }

void Sharded::check_in_place() const {
  if (units_) units_->check_in_place();
  for (const Shard& shard : shards_)
    for (const BucketTensor& tensor : shard.bucket.tensors)
      if (tensor.count > 0 && !shard.in_unit &&
          parameters_[tensor.parameter].tensor.data_ptr() !=
              shard.memory.as<std::byte>() + tensor.offset * size_of(shard.dtype))
        throw UsageError(
            "parameter '" + tensor.name +
            "' was given other memory after the model was wrapped, so its updates would be lost; "
            "change it in place (copy_), or make a new Sharded");
}

// Everybody's part of something that is laid out as the bucket, in place.
Work Sharded::gather(const Shard& shard, std::byte* memory, DType dtype) const {
  const Buffer& data = shard.bucket.data;
  const ElementRange own = own_range(shard.bucket);
  return group().all_gather_async(
      ConstBuffer{memory + own.begin * size_of(dtype), own.count(), dtype, data.device},
      Buffer{memory, data.count, dtype, data.device}, {.purpose = shard.bucket.purpose});
}

Work Sharded::bring_from_others(const Shard& shard) {
  const std::size_t bytes = shard.bucket.data.count * size_of(shard.dtype);
  if (!arriving_)
    arriving_ = std::make_unique<BucketSlots>(group(), Device(), BucketSlots::kUnderWay, /*filled=*/0);
  const CommMemory scratch = arriving_->take(bytes);
  WaitedFor begun;
  const Work work = begun.add([&] {
    return copy_->bring(shard.memory.as<std::byte>(), bytes, scratch.as<std::byte>(), shard.bucket.purpose);
  });
  arriving_->leave(scratch, work);
  begun.let_go();
  return work;
}

// Nobody may still be reading what others are about to change.
void Sharded::begin_updates() {
  if (copy_) copy_->meet("before the parameters are updated");
}

void Sharded::share_updates() {
  check_in_place();
  if (!copy_ || copy_->several_machines()) gather_updates();
  if (units_) units_->share_updates();
  if (copy_) copy_->meet("until the parameters are updated");
  for (std::size_t i = 0; i < parameters_.size(); ++i)  // a graph that saved it must notice
    if (reducer().used(i)) parameters_[i].tensor.unsafeGetTensorImpl()->bump_version();
}

void Sharded::gather_updates() {
  ExchangeLog& log = reducer().log();
  log.share_begin_ns = now_ns();
  WaitedFor begun;  // also where there is no memory for what a later one brings
  std::vector<const Shard*> moved;
  for (const Shard& shard : shards_) {
    if (group().size() == 1 || shard.in_unit) continue;
    begun.add([&] {
      return copy_ ? bring_from_others(shard) : gather(shard, shard.memory.as<std::byte>(), shard.dtype);
    });
    moved.push_back(&shard);
  }
  const std::vector<Work> works = begun.wait();
  log.share_end_ns = now_ns();
  log.shared.clear();
  for (std::size_t i = 0; i < works.size(); ++i) {
    const WorkTiming timing = works[i].timing();
    log.shared.push_back({.bucket = moved[i]->bucket.index,
                          .bytes = moved[i]->bucket.data.count * size_of(moved[i]->dtype),
                          .ready_ns = log.share_begin_ns,
                          .start_ns = timing.begin_ns,
                          .running_ns = timing.running_ns,
                          .end_ns = timing.end_ns,
                          .algorithm = timing.algorithm});
  }
}

void Sharded::join(const std::vector<torch::Tensor>& parts, const Take& take) {
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

torch::Tensor Sharded::cut(std::size_t i, const torch::Tensor& whole) const {
  const torch::Tensor& parameter = parameters_[i].tensor;
  const ElementRange& own = slices_[i].elements;
  return torch::empty_strided(parameter.sizes(), parameter.strides(), whole.options())
      .copy_(whole)
      .as_strided({parameter.numel()}, {1})
      .narrow(0, static_cast<std::int64_t>(own.begin), static_cast<std::int64_t>(own.count()));
}

// On a device what was written is there for all behind it, and nobody's process ends while others read.
void Sharded::end_whole() const {
  if (copy_ && copy_->on_device() && std::uncaught_exceptions() == 0)
    copy_->meet("until the parameters are read");
}

// What one writes there others may still be computing with.
void Sharded::set_whole(bool on) {
  Replicated::set_whole(on);
  if (!on) return end_whole();
  if (copy_) copy_->meet("until nobody computes with the parameters");
}

void Sharded::bring(const torch::Tensor& parameter) {
  Replicated::bring(parameter);
  if (!parameter.defined()) end_whole();
}

std::size_t Sharded::parameter_bytes() const {
  std::size_t bytes = Replicated::parameter_bytes();
  if (units_) return bytes - units_->whole_bytes() + units_->shard_bytes();
  if (!copy_) return bytes;
  for (const NamedTensor& parameter : parameters_) bytes -= parameter.tensor.nbytes();
  if (arriving_) bytes += arriving_->bytes();
  for (const Shard& shard : shards_)
    bytes += shard.memory.bytes() / static_cast<std::size_t>(copy_->workers());
  return bytes;
}

void Sharded::add_parts(std::span<double> values) {
  if (group().size() > 1) group().all_reduce(values, {.purpose = "figures of the parameters"});
}

}  // namespace lockstep
