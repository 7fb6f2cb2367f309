// Tensors for kernels that take pointers.
#pragma once

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/version.h>

#include <optional>

#include "lockstep/base/error.h"
#include "models/cuda/column_tiles.h"

namespace lockstep::gpu {

inline std::optional<Element> element_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return Element::f32;
    case at::kHalf: return Element::f16;
    case at::kBFloat16: return Element::bf16;
    default: return std::nullopt;
  }
}
inline Element element_of(const at::Tensor& tensor) { return element_of(tensor.scalar_type()).value(); }

// Whether rows of so many values can be taken 16 bytes at a time.
inline bool fits(const at::Tensor& tensor, std::int64_t columns) {
  const auto element = element_of(tensor.scalar_type());
  return tensor.is_cuda() && element && columns > 0 && columns % vector_width(*element) == 0;
}

// Whether libtorch's products change the type of what they are given, here and now.
inline bool autocasts() {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  return at::autocast::is_autocast_enabled(at::kCUDA);
#else
  return at::autocast::is_enabled();
#endif
}

inline cudaStream_t stream_of(const at::Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}

inline at::Tensor floats(std::int64_t count, const at::Tensor& like) {
  return at::empty({count}, like.options().dtype(at::kFloat));
}
inline float* float_data(const at::Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }
// How a function of autograd is given a tensor that may be missing: it takes no undefined ones.
using MaybeTensor = c10::optional<at::Tensor>;
inline MaybeTensor maybe(const at::Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : MaybeTensor();
}
inline at::Tensor or_undefined(const MaybeTensor& tensor) {
  return tensor.has_value() ? *tensor : at::Tensor();
}

inline void* data_or_null(const at::Tensor& tensor) { return tensor.defined() ? tensor.data_ptr() : nullptr; }

// Another tensor over the same memory, no view to autograd: for functions with several outputs.
inline at::Tensor alias_of(const at::Tensor& tensor, std::int64_t offset, at::IntArrayRef sizes,
                           at::IntArrayRef strides) {
  at::Tensor alias = at::empty({0}, tensor.options());
  alias.set_(tensor.storage(), tensor.storage_offset() + offset, sizes, strides);
  return alias;
}

// Kernels give first gradients only.
inline void refuse_second_order(const char* name) {
  if (at::GradMode::is_enabled())
    throw UsageError(std::string(name) +
                     ": a gradient of its gradient is asked for (create_graph); accepted: first order only");
}

}  // namespace lockstep::gpu
