#include "optim/host_copies.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/round_up.h"
#include "grad/torch_types.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "optim/layout.h"

namespace lockstep {
namespace {

constexpr std::size_t kBusSampleBytes = std::size_t{64} << 20;
constexpr std::int64_t kHostLineBytes = 64;
constexpr auto kLongestCopy = std::chrono::hours(1);
constexpr auto kLastCopies = std::chrono::minutes(1);

torch::TensorOptions host_options(torch::ScalarType dtype, const Device& device) {
  return torch::TensorOptions().dtype(dtype).pinned_memory(device.kind == Device::Kind::cuda);
}

// Tensors like these on the host, of these types, in one allocation a type.
std::vector<torch::Tensor> copies_like(const std::vector<torch::Tensor>& like,
                                       const std::vector<torch::ScalarType>& types, const Device& device) {
  std::map<torch::ScalarType, std::int64_t> totals;  // elements
  std::vector<std::int64_t> offsets;
  for (std::size_t i = 0; i < like.size(); ++i) {
    std::int64_t& total = totals[types[i]];
    const auto line = kHostLineBytes / static_cast<std::int64_t>(c10::elementSize(types[i]));
    offsets.push_back(total);
    total += round_up(like[i].numel(), line);
  }
  std::map<torch::ScalarType, torch::Tensor> flat;
  for (const auto& [dtype, total] : totals) flat[dtype] = torch::empty({total}, host_options(dtype, device));
  std::vector<torch::Tensor> list;
  for (std::size_t i = 0; i < like.size(); ++i)
    list.push_back(flat[types[i]].as_strided(like[i].sizes(), like[i].strides(), offsets[i]));
  return list;
}

// The elements of a tensor of the parameter's sizes, in the order of the parameter's state, in a row.
torch::Tensor in_order_of(const torch::Tensor& tensor, const torch::Tensor& like) {
  if (tensor.strides() == like.strides() && tensor.is_non_overlapping_and_dense())
    return in_state_order(tensor);
  return in_state_order(torch::empty_strided(like.sizes(), like.strides(), tensor.options()).copy_(tensor));
}

}  // namespace

HostCopies::HostCopies(const std::vector<torch::Tensor>& parameters)
    : there_(parameters),
      gradients_(parameters.size()),
      arrived_(parameters.size()),
      written_(parameters.size(), 0) {
  if (!parameters.empty()) device_ = device_of(parameters.front(), "a parameter");
  std::vector<torch::ScalarType> types;
  for (const torch::Tensor& parameter : parameters) {
    if (!(device_of(parameter, "a parameter") == device_))
      throw UsageError("offload: parameters are on several devices; accepted: one");
    if (!parameter.is_non_overlapping_and_dense())
      throw UsageError("offload: a parameter on " + to_string(device_) +
                       " is not dense in memory; accepted: contiguous or permuted");
    types.push_back(parameter.scalar_type());
    elements_ += static_cast<std::size_t>(parameter.numel());
  }
  parameters_ = copies_like(parameters, types, device_);
  for (std::size_t i = 0; i < parameters.size(); ++i) refresh(i);
}

HostCopies::~HostCopies() {
  try {
    DeviceRuntime& runtime = runtime_of(device_);
    const bool in_a_step = std::ranges::count(written_, 0) != std::ssize(written_);
    if (sent_) (void)runtime.wait_on_host(sent_, kLastCopies);
    if (in_a_step) (void)runtime.wait_on_host(runtime.record(stream()), kLastCopies);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a device that failed reads nothing
  }
}

void HostCopies::refresh(std::size_t i) {
  DeviceRuntime& runtime = runtime_of(device_);
  runtime.copy(parameters_[i].data_ptr(), there_[i].data_ptr(), parameters_[i].nbytes(), stream());
  (void)runtime.wait_on_host(runtime.record(stream()), kLongestCopy);
}

void HostCopies::bring(std::span<const Slice> slices) {
  note_last_step();
  DeviceRuntime& runtime = runtime_of(device_);
  if (places_.empty()) {
    std::vector<torch::ScalarType> types;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      types.push_back(slices[i].gradient.defined() ? slices[i].gradient.scalar_type()
                                                   : parameters_[i].scalar_type());
    places_ = copies_like(parameters_, types, device_);
  }
  kept_.clear();
  ready_ = runtime.record(stream());
  ready_ns_ = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& gradient = slices[i].gradient;
    gradients_[i] = torch::Tensor();
    if (!gradient.defined()) continue;
    // What an optimizer refuses it has to see.
    if (gradient.layout() != torch::kStrided || gradient.sizes() != parameters_[i].sizes() ||
        gradient.device() != there_[i].device() || !float_dtype(gradient)) {
      gradients_[i] = gradient;
      continue;
    }
    if (gradient.scalar_type() != places_[i].scalar_type())
      places_[i] = copies_like({parameters_[i]}, {gradient.scalar_type()}, device_)[0];
    kept_.push_back(in_order_of(gradient, parameters_[i]));
    runtime.copy(places_[i].data_ptr(), kept_.back().data_ptr(), kept_.back().nbytes(), stream());
    arrived_[i] = runtime.record(stream());
    gradients_[i] = places_[i];
  }
}

void HostCopies::await(std::size_t i) {
  if (!arrived_[i]) return;
  if (!runtime_of(device_).wait_on_host(arrived_[i], kLongestCopy))
    throw SystemError("offload: gradients have not come from " + to_string(device_) + " within an hour");
  if (ready_ns_ == 0) ready_ns_ = now_ns();
  arrived_[i] = {};
}

void HostCopies::send(std::size_t i, std::size_t begin, std::size_t count) {
  const std::size_t size = parameters_[i].element_size();
  runtime_of(device_).copy(static_cast<std::byte*>(there_[i].data_ptr()) + begin * size,
                           static_cast<const std::byte*>(parameters_[i].data_ptr()) + begin * size,
                           count * size, stream());
  written_[i] = 1;
}

void HostCopies::end_step() {
  for (std::size_t i = 0; i < there_.size(); ++i)
    if (std::exchange(written_[i], 0) != 0) there_[i].unsafeGetTensorImpl()->bump_version();
  kept_.clear();
  sent_ = runtime_of(device_).record(stream());
  sent_ns_ = now_ns();
}

void HostCopies::note_last_step() {
  if (sent_ns_ == 0 || ready_ns_ == 0) return;
  DeviceRuntime& runtime = runtime_of(device_);
  const std::int64_t begin = runtime.time_of(ready_).value_or(ready_ns_);
  const std::int64_t end = runtime.time_of(sent_).value_or(sent_ns_);
  steps_.add(end - begin);
  sent_ns_ = 0;
}

std::optional<double> HostCopies::measured_ms() {
  note_last_step();
  return steps_.median_ms();
}

std::size_t HostCopies::host_bytes() const {
  std::size_t bytes = 0;
  for (const auto* const list : {&parameters_, &places_})
    for (const torch::Tensor& tensor : *list) bytes += tensor.nbytes();
  return bytes;
}

HostCopies::BusRates HostCopies::measure_bus() const {
  DeviceRuntime& runtime = runtime_of(device_);
  const auto bytes = static_cast<std::int64_t>(kBusSampleBytes);
  const torch::Tensor here = torch::empty({bytes}, host_options(torch::kUInt8, device_));
  const torch::Tensor there =
      torch::empty({bytes}, torch::TensorOptions().dtype(torch::kUInt8).device(torch_device(device_)));
  const auto rate = [&](void* to, const void* from) {
    std::vector<double> seconds;
    for (int i = 0; i < 4; ++i) {
      (void)runtime.wait_on_host(runtime.record(stream()), kLongestCopy);
      const std::int64_t begin = now_ns();
      runtime.copy(to, from, kBusSampleBytes, stream());
      (void)runtime.wait_on_host(runtime.record(stream()), kLongestCopy);
      seconds.push_back(static_cast<double>(now_ns() - begin) / 1e9);
    }
    return static_cast<double>(kBusSampleBytes) / *std::ranges::min_element(seconds);
  };
  return {.down = rate(here.data_ptr(), there.data_ptr()), .up = rate(there.data_ptr(), here.data_ptr())};
}

}  // namespace lockstep
