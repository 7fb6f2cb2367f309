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

Buffer buffer_of(const torch::Tensor& tensor, const std::string& what) {
  if (!tensor.device().is_cpu())
    throw UsageError(what + " is on " + tensor.device().str() + "; accepted: cpu");
  if (!tensor.is_non_overlapping_and_dense())
    throw UsageError(what +
                     " is not dense in memory; accepted: contiguous or permuted, nothing shared or skipped");
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), dtype_of(tensor, what)};
}

}  // namespace lockstep
