#include "train/device.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/option_name.h"
#include "grad/torch_types.h"
#include "lockstep/base/error.h"
#include "lockstep/base/identity.h"
#include "lockstep/comm/device.h"
#include "train/gpu_memory.h"

namespace lockstep {
namespace {

constexpr auto kLongestStep = std::chrono::hours(1);

torch::Tensor moved_tensor(const torch::Tensor& tensor, torch::Device device, bool channels_last) {
  if (!tensor.defined()) return tensor;
  const torch::Tensor there = tensor.to(device, /*non_blocking=*/true);
  return channels_last && there.dim() == 4 ? there.contiguous(torch::MemoryFormat::ChannelsLast) : there;
}

}  // namespace

torch::Device find_device(const std::string& name, [[maybe_unused]] int local_rank) {
  if (name == "cpu") return torch::kCPU;
  int index = -1;
  if (name.starts_with("cuda:")) {
    const char* const end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data() + 5, end, index);
    if (error != std::errc() || at != end) index = -2;
  }
  if (name != "cuda" && index < 0)
    throw UsageError(fmt::format("device '{}'; accepted: cpu, cuda, cuda:0, cuda:1 …", name));
#ifndef LOCKSTEP_HAS_TORCH_CUDA
  throw UsageError(fmt::format("device {}: this build has no CUDA (accepted: cpu)", name));
#else
  const int count = gpu_count();
  if (count == 0) throw UsageError(fmt::format("device {}: no GPU found (accepted: cpu)", name));
  if (index >= count)
    throw UsageError(
        fmt::format("device {}: this machine has {} GPU{} (accepted: cpu, cuda, cuda:0 to cuda:{})", name,
                    count, count == 1 ? "" : "s", count - 1));
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(index >= 0 ? index : local_rank % count)};
#endif
}

Device::Kind device_kind(const std::string& name) {
  return name.starts_with("cuda") ? Device::Kind::cuda : Device::Kind::cpu;
}

// cuBLAS takes its workspace from this variable when it starts, and without it libtorch refuses products as
// not deterministic.
void set_arithmetic(torch::Device device, GpuArithmetic arithmetic) {
  if (!device.is_cuda()) return;
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);  // no context on others' GPUs
  if (arithmetic.deterministic) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(arithmetic.deterministic, /*warn_only=*/false);
  context.setDeterministicCuDNN(arithmetic.deterministic);
  context.setBenchmarkCuDNN(!arithmetic.deterministic);
  context.setAllowTF32CuBLAS(arithmetic.tf32);
  context.setAllowTF32CuDNN(arithmetic.tf32);
}

torch::Device begin_device(const TrainerOptions& o) {
  const torch::Device device = find_device(o.device, Identity::from_environment().local_rank);
  const std::string graph = option_text("cuda_graph", "true");
  if (o.cuda_graph && device.is_cpu())
    throw UsageError(graph + ": a GPU's work is recorded; accepted: with " + option_text("device", "cuda"));
  if (o.cuda_graph && o.precision == "bf16-autocast")
    throw UsageError(
        graph + " with " + option_text("precision", o.precision) +
        ": autocast keeps copies of the weights, which a record would use for ever; accepted: fp32, "
        "bf16, fp16");
  if (o.cuda_graph && (o.strategy == "zero3" || o.strategy == "hybrid-shard"))
    throw UsageError(graph + " with " + option_text("strategy", o.strategy) +
                     ": parameters are gathered inside forward and backward; accepted: ddp, zero1, zero2");
  set_arithmetic(device, {o.deterministic, o.tf32});
  limit_memory(device, o);
  return device;
}

void limit_memory(torch::Device device, const TrainerOptions& o) {
  if (o.gpu_memory_mb > 0) limit_gpu_memory(device.index(), o.gpu_memory_mb * 0x1p20);
}

void move_model(torch::nn::Module& model, torch::Device device, bool channels_last) {
  if (!device.is_cpu()) model.to(device);
  if (!channels_last) return;
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : model.parameters())
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
}

Batch moved(const Batch& batch, torch::Device device, bool channels_last) {
  if (device.is_cpu() && !channels_last) return batch;
  Batch there{.data = moved_tensor(batch.data, device, channels_last),
              .target = moved_tensor(batch.target, device, false)};
  for (const auto& [name, tensor] : batch.more)
    there.more.emplace(name, moved_tensor(tensor, device, channels_last));
  return there;
}

void wait_for_device(torch::Device device) {
  if (device.is_cpu()) return;
  const Device ours = device_of(torch::empty({0}, torch::TensorOptions().device(device)), "it");
  DeviceRuntime& runtime = runtime_of(ours);
  if (!runtime.wait_on_host(runtime.record(runtime.current_stream(ours.index)), kLongestStep))
    throw SystemError(fmt::format("{} has not finished within an hour", device.str()));
}

nlohmann::ordered_json device_figures(torch::Device device, GpuArithmetic arithmetic) {
  if (!device.is_cuda()) return {{"name", device.str()}};
  const GpuMemory memory = gpu_memory(device.index());
  return {{"name", device.str()},
          {"gpu", gpu_name(device.index())},
          {"peak_bytes", memory.peak_bytes},
          {"comm_bytes", memory.comm_bytes},
          {"held_bytes", memory.held_bytes},
          {"free_bytes", memory.free_bytes},
          {"total_bytes", memory.total_bytes},
          {"deterministic", arithmetic.deterministic},
          {"tf32", arithmetic.tf32}};
}

}  // namespace lockstep
