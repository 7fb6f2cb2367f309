// Types of tensors' elements, for kernels that know nothing of libtorch.
#pragma once

#include <cstdint>

namespace lockstep::gpu {

enum class Element : std::uint8_t { f32, f16, bf16 };

// A tensor as rows of channels that lie together: channels-last images, tokens.
struct Rows {
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // a multiple of 8 (4 for f32), so that 16 bytes are read and written at a time
};

inline constexpr std::int64_t vector_width(Element element) { return element == Element::f32 ? 4 : 8; }

}  // namespace lockstep::gpu
