#include "grad/torch_types.h"

#include "lockstep/base/error.h"

namespace lockstep {

DType dtype_of(const torch::Tensor& tensor, const std::string& what) {
  switch (tensor.scalar_type()) {
    case torch::kFloat64: return DType::f64;
    case torch::kFloat32: return DType::f32;
    case torch::kFloat16: return DType::f16;
    case torch::kBFloat16: return DType::bf16;
    case torch::kInt64: return DType::i64;
    case torch::kInt32: return DType::i32;
    case torch::kInt8: return DType::i8;
    case torch::kUInt8:
    case torch::kBool: return DType::u8;
    default:
      throw UsageError(what + " has type " + std::string(torch::toString(tensor.scalar_type())) +
                       "; accepted: Double, Float, Half, BFloat16, Long, Int, Char, Byte, Bool");
  }
}

std::optional<DType> float_dtype(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kFloat: return DType::f32;
    case torch::kDouble: return DType::f64;
    case torch::kHalf: return DType::f16;
    case torch::kBFloat16: return DType::bf16;
    default: return std::nullopt;
  }
}

torch::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return torch::kFloat64;
    case DType::f32: return torch::kFloat32;
    case DType::f16: return torch::kFloat16;
    case DType::bf16: return torch::kBFloat16;
    case DType::i64: return torch::kInt64;
    case DType::i32: return torch::kInt32;
    case DType::i8: return torch::kInt8;
    case DType::u8: break;
  }
  return torch::kUInt8;
}

Device device_of(const torch::Tensor& tensor, const std::string& what) {
  const torch::Device device = tensor.device();
  switch (device.type()) {
    case c10::DeviceType::CPU: return {};
    case c10::DeviceType::CUDA: return {Device::Kind::cuda, device.index()};
    case c10::DeviceType::PrivateUse1: return {Device::Kind::custom, device.index()};
    default:
      throw UsageError(what + " is on " + device.str() +
                       "; accepted: cpu, or a device that the group's engine works on");
  }
}

torch::Device torch_device(Device device) {
  const auto index = static_cast<c10::DeviceIndex>(device.index);
  switch (device.kind) {
    case Device::Kind::cpu: break;
    case Device::Kind::cuda: return {c10::DeviceType::CUDA, index};
    case Device::Kind::custom: return {c10::DeviceType::PrivateUse1, index};
  }
  return torch::kCPU;
}

Buffer buffer_of(const torch::Tensor& tensor, const std::string& what) {
  const Device device = device_of(tensor, what);
  if (!tensor.is_non_overlapping_and_dense())
    throw UsageError(what +
                     " is not dense in memory; accepted: contiguous or permuted, nothing shared or skipped");
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), dtype_of(tensor, what), device};
}

torch::Tensor tensor_at(const Buffer& place, at::IntArrayRef sizes, at::IntArrayRef strides,
                        std::shared_ptr<void> owner) {
  const torch::Device device = torch_device(place.device);
  return at::from_blob(
      place.data, sizes, strides, [owner = std::move(owner)](void*) {},
      torch::TensorOptions().dtype(scalar_type_of(place.dtype)).device(device), device);
}

torch::Tensor tensor_at(const Buffer& place, std::shared_ptr<void> owner) {
  return tensor_at(place, {static_cast<std::int64_t>(place.count)}, {1}, std::move(owner));
}

}  // namespace lockstep
