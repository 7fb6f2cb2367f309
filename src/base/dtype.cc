#include "lockstep/base/dtype.h"

#include <bit>
#include <span>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

template <class Enum>
Enum parse_enum(std::string_view text, std::span<const Enum> all, const char* what) {
  std::string names;
  for (Enum value : all) {
    if (text == to_string(value)) return value;
    names += names.empty() ? "" : ", ";
    names += to_string(value);
  }
  throw UsageError("unknown " + std::string(what) + " '" + std::string(text) + "'; accepted: " + names);
}

}  // namespace

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::i8:
    case DType::u8: return 1;
  }
  return 0;
}

bool is_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::i8: return "i8";
    case DType::u8: return "u8";
  }
  return "?";
}

const char* to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::avg: return "avg";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
    case ReduceOp::product: return "product";
    case ReduceOp::bit_and: return "bit_and";
    case ReduceOp::bit_or: return "bit_or";
  }
  return "?";
}

DType parse_dtype(std::string_view text) { return parse_enum<DType>(text, kAllDTypes, "type"); }

ReduceOp parse_reduce_op(std::string_view text) {
  return parse_enum<ReduceOp>(text, kAllReduceOps, "reduction");
}

bool supports(ReduceOp op, DType dtype) {
  return !(op == ReduceOp::bit_and || op == ReduceOp::bit_or) || !is_float(dtype);
}

float to_float(BFloat16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

float to_float(Half value) {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = value.bits & 0x3ffU;
  if (exponent == 0x1f) {  // infinity, or a NaN made quiet as hardware does
    const std::uint32_t quiet = mantissa != 0 ? 0x400000U : 0U;
    return std::bit_cast<float>(sign | 0x7f800000U | quiet | (mantissa << 13));
  }
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in f32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

Half to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  auto make = [sign](std::uint32_t rest) { return Half{static_cast<std::uint16_t>(sign | rest)}; };
  if (magnitude > 0x7f800000U) return make(0x7e00U | ((magnitude >> 13) & 0x3ffU));
  if (magnitude >= 0x477ff000U) return make(0x7c00U);  // rounds past 65504
  if (magnitude < 0x38800000U) {                       // subnormal: let f32 addition round for us
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return make(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U);
  }
  const std::uint32_t odd = (magnitude >> 13) & 1U;
  return make((magnitude - 0x38000000U + 0xfffU + odd) >> 13);
}

}  // namespace lockstep
