#include "parallel/parameter_units.h"

#include <algorithm>
#include <utility>

#include "grad/torch_types.h"
#include "grad/waited_for.h"
#include "lockstep/base/error.h"

namespace lockstep {
void ParameterUnits::Held::fill(std::byte* with) {
  gathered = with;
  for (std::size_t i = 0; i < storages.size(); ++i)
    storages[i].unsafeGetStorageImpl()->set_data_ptr_noswap(
        at::DataPtr(with != nullptr ? with + offsets[i] : nullptr, torch_device(memory.device())));
}

ParameterUnits::ParameterUnits(Group group, int sharers, std::size_t budget_bytes, Device device,
                               Offload offload)
    : group_(std::move(group)),
      sharers_(sharers),
      sets_(group_.size() / sharers),
      across_(sets_ > 1 ? group_.split(group_.rank() % sharers) : Group()),
      budget_bytes_(budget_bytes),
      device_(device),
      offload_(std::move(offload)),
      row_(group_, device),
      line_(std::make_shared<GatherLine>(group_.split(group_.rank() / sharers), device)) {}

// What is left of the module has neither memory nor sizes, so that who uses it is told so by libtorch.
ParameterUnits::~ParameterUnits() {
  const torch::NoGradGuard no_grad;
  line_->stop();  // first: the memory that it writes to goes with the schedule
  schedule_.reset();
  line_.reset();
  for (const auto& held : held_) {
    held->fill(nullptr);
    for (const auto& [name, tensor] : held->parameters)
      torch::Tensor(tensor).set_data(torch::empty({0}, tensor.options().requires_grad(false)));
  }
}

const std::vector<int>& ParameterUnits::lay_out(const torch::nn::Module& module,
                                                const std::vector<NamedTensor>& parameters) {
  layout_ = lay_out_units(module, parameters);
  if (!parameters.empty() && layout_.points.empty())
    throw UsageError(
        "parameters in shards (zero3) are gathered in units here, and the model has none; accepted: "
        "lockstep::shard(block) where the model is built (parallel/units.h), several workers a machine over "
        "shared memory (engine shm, or shm+tcp across machines) without `gathered_mb`, `shard_workers` and "
        "`offload_params`, or zero2");
  return layout_.kinds;
}

std::size_t ParameterUnits::first_of(std::size_t k, std::size_t part) const {
  const auto sharers = static_cast<std::size_t>(sharers_);
  return (k * sharers + static_cast<std::size_t>(group_.rank()) % sharers) * part;
}

std::size_t ParameterUnits::part_bytes(const Bucket& bucket,
                                       const std::vector<NamedTensor>& parameters) const {
  return bucket.data.count / static_cast<std::size_t>(group_.size()) *
         parameters[bucket.tensors.front().parameter].tensor.element_size();
}

void ParameterUnits::reserve(std::span<const Bucket> buckets, const std::vector<NamedTensor>& parameters) {
  for (const Bucket& bucket : buckets)
    if (has(bucket)) row_.reserve(static_cast<std::size_t>(sets_) * part_bytes(bucket, parameters));
}

// On a device in the order of the current stream.
void ParameterUnits::copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
  DeviceRuntime& runtime = runtime_of(device_);
  runtime.copy(to, from, bytes, runtime.current_stream(device_.index));
}

// Copies what a tensor and bytes [first, first + count) of its bucket have in common to `to`, which stands
// for those bytes.
void ParameterUnits::copy_common(const torch::Tensor& tensor, std::size_t offset, std::size_t first,
                                 std::size_t count, std::byte* to) const {
  const std::size_t begin = std::max(offset, first);
  const std::size_t end = std::min(offset + static_cast<std::size_t>(tensor.nbytes()), first + count);
  if (begin < end)
    copy(to + (begin - first), static_cast<const std::byte*>(tensor.data_ptr()) + (begin - offset),
         end - begin);
}

CommMemory ParameterUnits::add(const Bucket& bucket, DType dtype,
                               const std::vector<NamedTensor>& parameters) {
  const torch::NoGradGuard no_grad;
  const auto sets = static_cast<std::size_t>(sets_);
  auto held = std::make_unique<Held>();
  held->bucket = bucket.index;
  held->part_bytes = part_bytes(bucket, parameters);
  std::vector<std::byte> on_its_way(store_ ? sets * held->part_bytes : 0);  // to the disk
  if (!store_) held->memory = row_.take(sets * held->part_bytes);
  auto* const memory = store_ ? on_its_way.data() : held->memory.as<std::byte>();
  for (const BucketTensor& place : bucket.tensors) {
    const NamedTensor& parameter = parameters[place.parameter];
    torch::Tensor tensor = parameter.tensor;
    const std::size_t offset = place.offset * size_of(dtype);
    for (std::size_t k = 0; k < sets; ++k)
      copy_common(tensor, offset, first_of(k, held->part_bytes), held->part_bytes,
                  memory + k * held->part_bytes);
    tensor.set_data(
        tensor_at({nullptr, place.count, dtype, device_}, tensor.sizes(), tensor.strides(), nullptr));
    held->parameters.push_back(parameter);
    held->offsets.push_back(offset);
    held->storages.push_back(tensor.storage());
  }
  held->fill(nullptr);
  const int kind = layout_.kinds[bucket.tensors.front().parameter];  // of all in the bucket
  held->units = layout_.units_of_kind[static_cast<std::size_t>(kind)];
  const std::string& name = layout_.names[static_cast<std::size_t>(held->units.front())];
  for (std::size_t k = 0; store_ && k < sets; ++k)
    store_->write_part(static_cast<int>(held_.size()), k,
                       std::span(memory + k * held->part_bytes, held->part_bytes));
  line_->add({.own = store_ ? nullptr : memory,
              .part_bytes = held->part_bytes,
              .parts = sets,
              .what = "the parameters of unit '" + name + "'"});
  held_.push_back(std::move(held));
  return held_.back()->memory;
}

int ParameterUnits::place_of(const Bucket& bucket) const {
  return static_cast<int>(
      std::ranges::find_if(held_, [&](const auto& each) { return each->bucket == bucket.index; }) -
      held_.begin());
}

std::byte* ParameterUnits::own_part(const Bucket& bucket) const {
  if (store_) return nullptr;
  const Held& held = *held_[static_cast<std::size_t>(place_of(bucket))];
  return held.memory.as<std::byte>() + static_cast<std::size_t>(group_.rank() / sharers_) * held.part_bytes;
}

void ParameterUnits::add_slice(std::size_t i, const Slice& slice, const Bucket& bucket, std::size_t offset) {
  if (store_) store_->add_slice(i, slice.parameter, place_of(bucket), offset);
}

void ParameterUnits::make_room(std::span<const Bucket> buckets, const std::vector<NamedTensor>& parameters) {
  if (!offload_) return;
  std::vector<ShardStore::Form> forms;
  for (const Bucket& bucket : buckets)
    if (has(bucket))
      forms.push_back({.part_bytes = part_bytes(bucket, parameters),
                       .parts = static_cast<std::size_t>(sets_),
                       .own = static_cast<std::size_t>(group_.rank() / sharers_)});
  std::string wrong;
  try {
    store_ = std::make_unique<ShardStore>(offload_, std::move(forms), parameters.size());
  } catch (const OffloadError& error) {
    wrong = error.what();
  }
  for (const std::string& said : group_.all_gather(wrong))
    if (!said.empty()) throw OffloadError(said);
  line_->set_store(store_.get());
}

void ParameterUnits::start() {
  std::vector<UnitSchedule::UnitBuckets> units;
  for (const std::string& name : layout_.names) units.push_back({name, {}});
  std::vector<UnitSchedule::BucketPlace> places;
  for (std::size_t h = 0; h < held_.size(); ++h) {
    Held* const held = held_[h].get();
    places.push_back({.bytes = held->part_bytes * static_cast<std::size_t>(group_.size()),
                      .fill = [held](std::byte* memory) { held->fill(memory); }});
    for (const int unit : held->units)
      units[static_cast<std::size_t>(unit)].buckets.push_back(static_cast<int>(h));
  }
  schedule_ = std::make_shared<UnitSchedule>(line_, std::move(units), std::move(places), budget_bytes_);
  for (std::size_t u = 0; u < layout_.points.size(); ++u) {
    layout_.points[u]->keeper = schedule_;
    layout_.points[u]->number = static_cast<int>(u);
  }
}

void ParameterUnits::check_in_place() const {
  for (const auto& held : held_)
    for (std::size_t i = 0; i < held->parameters.size(); ++i)
      if (held->parameters[i].tensor.storage().unsafeGetStorageImpl() !=
          held->storages[i].unsafeGetStorageImpl())
        throw UsageError(
            "parameter '" + held->parameters[i].name +
            "' was given other memory after the model was wrapped, so its updates would be lost; "
            "change it in place (copy_) under whole(), or make a new Sharded");
}

// Bucket by bucket: all of them would be what is on disk because memory has no room for it.
void ParameterUnits::share_stored_updates() const {
  const auto sets = static_cast<std::size_t>(sets_), own = static_cast<std::size_t>(across_.rank());
  for (std::size_t h = 0; h < held_.size(); ++h) {
    const std::size_t part = held_[h]->part_bytes;
    std::vector<std::byte> all(sets * part);
    store_->read_part(static_cast<int>(h), own, std::span(all).subspan(own * part, part));
    across_.all_gather(ConstBuffer(all.data() + own * part, part, DType::u8),
                       Buffer{all.data(), all.size(), DType::u8}, {.purpose = "updates of the other nodes"});
    for (std::size_t k = 0; k < sets; ++k)
      if (k != own) store_->write_part(static_cast<int>(h), k, std::span(all).subspan(k * part, part));
  }
}

void ParameterUnits::share_updates() const {
  if (store_) store_->let_go();
  if (store_ && sets_ > 1) share_stored_updates();
  if (store_) store_->end_step();
  if (store_ || sets_ == 1) return;
  WaitedFor begun;
  for (const auto& held : held_) {
    auto* const memory = held->memory.as<std::byte>();
    begun.add([&] {
      return across_.all_gather_async(
          ConstBuffer{memory + static_cast<std::size_t>(across_.rank()) * held->part_bytes, held->part_bytes,
                      DType::u8, device_},
          Buffer{memory, static_cast<std::size_t>(sets_) * held->part_bytes, DType::u8, device_},
          {.purpose = "updates of the other nodes"});
    });
  }
  begun.wait();
}

// What was written under whole(), every worker its own parts of it.
void ParameterUnits::take_written() {
  for (const auto& held : held_)
    for (std::size_t k = 0; held->gathered != nullptr && k < static_cast<std::size_t>(sets_); ++k) {
      const std::byte* const part = held->gathered + first_of(k, held->part_bytes);
      if (store_)
        store_->write_part(static_cast<int>(&held - held_.data()), k, std::span(part, held->part_bytes));
      else
        copy(held->memory.as<std::byte>() + k * held->part_bytes, part, held->part_bytes);
    }
}

void ParameterUnits::set_whole(bool on) {
  if (!on) try {
      take_written();
    } catch (...) {  // they go all the same: who stayed would be computed with after the next updates
      schedule_->set_whole(false);
      throw;
    }
  schedule_->set_whole(on);
}

void ParameterUnits::bring(const torch::Tensor& parameter) {
  if (!parameter.defined())
    schedule_->bring(UnitSchedule::kNoBucket);
  else if (const auto holder = holder_of(parameter); holder != held_.end())
    schedule_->bring(static_cast<int>(holder - held_.begin()));
}

ParameterUnits::AllHeld::const_iterator ParameterUnits::holder_of(const torch::Tensor& parameter) const {
  return std::ranges::find_if(held_, [&](const auto& held) {
    return std::ranges::any_of(held->storages, [&](const c10::Storage& storage) {
      return storage.unsafeGetStorageImpl() == parameter.storage().unsafeGetStorageImpl();
    });
  });
}

bool ParameterUnits::holds(const torch::Tensor& parameter) const {
  return holder_of(parameter) != held_.end();
}

std::size_t ParameterUnits::shard_bytes() const {
  std::size_t bytes = store_ ? store_->peak_bytes() : 0;
  for (const auto& held : held_) bytes += held->memory.bytes();
  return bytes;
}

std::size_t ParameterUnits::whole_bytes() const {
  std::size_t bytes = 0;
  for (const auto& held : held_)
    for (const NamedTensor& parameter : held->parameters) bytes += parameter.tensor.nbytes();
  return bytes;
}

}  // namespace lockstep
