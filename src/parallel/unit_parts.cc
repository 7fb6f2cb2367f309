#include "parallel/unit_parts.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "base/round_up.h"
#include "grad/torch_types.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/device.h"
#include "lockstep/parallel/construction.h"
#include "parallel/replicas.h"
#include "parallel/unit_points.h"

namespace lockstep {
namespace {

constexpr std::size_t kAlignment = 64;  // of each parameter, and of each part

std::size_t aligned(std::size_t bytes) { return round_up(bytes, kAlignment); }

// Straight from the kernel and back to it: what malloc keeps would be memory that the worker has not got. On
// a device libtorch's, in the order of the current stream.
std::shared_ptr<void> pages(std::size_t bytes, Device device) {
  if (device.kind != Device::Kind::cpu) {
    const torch::Tensor tensor =
        torch::empty({static_cast<std::int64_t>(bytes)},
                     torch::TensorOptions().dtype(torch::kUInt8).device(torch_device(device)));
    return {tensor.data_ptr(), [tensor](void*) {}};
  }
  void* const data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return {data, [bytes](void* memory) { ::munmap(memory, bytes); }};
}

void give_memory(const torch::Tensor& parameter, std::byte* data, std::shared_ptr<void> owner) {
  const DType dtype = dtype_of(parameter, "a parameter");
  torch::Tensor(parameter).set_data(tensor_at(
      {data, static_cast<std::size_t>(parameter.numel()), dtype, device_of(parameter, "a parameter")},
      parameter.sizes(), parameter.strides(), std::move(owner)));
}

}  // namespace

bool can_be_cut(const torch::Tensor& parameter) {
  const c10::DeviceType where = parameter.device().type();
  return (where == torch::kCPU || where == torch::kCUDA || where == c10::DeviceType::PrivateUse1) &&
         parameter.numel() > 0 && parameter.is_non_overlapping_and_dense() &&
         float_dtype(parameter).has_value();
}

void PartsTally::add(std::size_t bytes) {
  now += bytes;
  peak = std::max(peak, now);
}

UnitParts::UnitParts(Group group, std::string name, const std::vector<torch::Tensor>& parameters,
                     std::shared_ptr<PartsTally> tally)
    : group_(std::move(group)), name_(std::move(name)), left_(parameters.size()), tally_(std::move(tally)) {
  for (const torch::Tensor& parameter : parameters)
    parameters_.push_back({name_ + ", parameter " + std::to_string(parameters_.size()), parameter});
  for (const torch::Tensor& parameter : parameters) whole_bytes_ += parameter.nbytes();
  tally_->add(whole_bytes_);
  cut();
}

bool UnitParts::holds(const torch::Tensor& parameter) const {
  return std::ranges::any_of(parameters_,
                             [&](const NamedTensor& own) { return own.tensor.is_same(parameter); });
}

std::size_t UnitParts::lay_out() {
  std::size_t end = 0;
  offsets_.clear();
  for (const NamedTensor& parameter : parameters_) {
    offsets_.push_back(end);
    end += aligned(parameter.tensor.nbytes());
  }
  const auto workers = static_cast<std::size_t>(group_.size());
  return aligned((end + workers - 1) / workers);
}

void UnitParts::cut() {
  if (!whole()) return;
  const torch::NoGradGuard no_grad;
  check_form(group_, parameters_);
  // Whoever had them whole has moved them: that is left to the strategy, as what is made so.
  if (!std::ranges::all_of(parameters_, can_be_cut, &NamedTensor::tensor)) return;
  device_ = device_of(parameters_.front().tensor, "a parameter");
  if (std::ranges::any_of(parameters_, [&](const NamedTensor& parameter) {
        return !(device_of(parameter.tensor, "a parameter") == device_);
      }))
    return;
  if (!same_bits(group_, parameters_)) broadcast_all(group_, parameters_);
  part_bytes_ = lay_out();
  const std::shared_ptr<void> part = pages(part_bytes_, device_);
  DeviceRuntime& runtime = runtime_of(device_);
  tally_->add(part_bytes_);
  const std::size_t first = part_bytes_ * static_cast<std::size_t>(group_.rank());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& parameter = parameters_[i].tensor;
    const std::size_t begin = std::max(offsets_[i], first);
    const std::size_t end = std::min(offsets_[i] + parameter.nbytes(), first + part_bytes_);
    if (begin < end)
      runtime.copy(static_cast<std::byte*>(part.get()) + (begin - first),
                   static_cast<const std::byte*>(parameter.data_ptr()) + (begin - offsets_[i]), end - begin,
                   runtime.current_stream(device_.index));
  }
  for (const NamedTensor& parameter : parameters_) give_memory(parameter.tensor, nullptr, nullptr);
  part_ = part;
  tally_->remove(whole_bytes_);
}

void UnitParts::bring() {
  if (whole()) return;
  const torch::NoGradGuard no_grad;
  const std::shared_ptr<void> row = pages(row_bytes(), device_);
  whole_bytes_ = row_bytes();
  tally_->add(whole_bytes_);
  group_.all_gather(ConstBuffer{part_.get(), part_bytes_, DType::u8, device_},
                    Buffer{row.get(), row_bytes(), DType::u8, device_}, {.purpose = name_});
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    give_memory(parameters_[i].tensor, static_cast<std::byte*>(row.get()) + offsets_[i], row);
  part_.reset();
  tally_->remove(part_bytes_);
}

// The row goes with the last of them.
void UnitParts::moved(const torch::Tensor& parameter) {
  if (holds(parameter) && --left_ == 0) tally_->remove(whole_bytes_);
}

CutUnits::CutUnits(const torch::nn::Module& module) {
  for (auto& point : units_in(module)) {
    if (point->parts.empty()) continue;
    for (const auto& parts : point->parts)
      if (std::ranges::count(parts_, parts) == 0) parts_.push_back(parts);
    points_.push_back(std::move(point));
  }
  for (const auto& entry : module.named_parameters())
    if (const torch::Tensor& parameter = entry.value();
        parameter.defined() && can_be_cut(parameter) && !has_memory(parameter) && !parts_of(parameter))
      throw UsageError(
          "parameter '" + entry.key() +
          "' has no memory: the unit that it was cut with (ShardedConstruction) is gone or not in "
          "this model, or another strategy has it; accepted: what shard() gives is kept as long "
          "as the model");
}

std::shared_ptr<UnitParts> CutUnits::parts_of(const torch::Tensor& parameter) const {
  const auto found = std::ranges::find_if(parts_, [&](const auto& parts) { return parts->holds(parameter); });
  return found != parts_.end() ? *found : nullptr;
}

void CutUnits::bring(const torch::Tensor& parameter) const {
  if (const auto parts = parts_of(parameter)) parts->bring();
}

void CutUnits::moved(const torch::Tensor& parameter) const {
  if (const auto parts = parts_of(parameter)) parts->moved(parameter);
}

void CutUnits::hold(std::size_t bytes) const {
  if (!parts_.empty()) parts_.front()->tally().add(bytes);
}

void CutUnits::check(const Group& group) const {
  for (const auto& parts : parts_)
    if (!parts->whole() && parts->workers() < group.size())
      throw UsageError("units were cut among " + std::to_string(parts->workers()) +
                       " workers (ShardedConstruction), and the strategy has " +
                       std::to_string(group.size()) +
                       "; accepted: a ShardedConstruction of the strategy's workers");
}

void CutUnits::join() const {
  for (const auto& parts : parts_) parts->bring();
  for (const auto& point : points_) point->parts.clear();
}

}  // namespace lockstep
