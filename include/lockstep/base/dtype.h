// Element types and reduction operations that collectives understand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, i32, i8, u8 };
enum class ReduceOp : std::uint8_t { sum, avg, min, max, product, bit_and, bit_or };

inline constexpr DType kAllDTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16,
                                       DType::i64, DType::i32, DType::i8,  DType::u8};
inline constexpr ReduceOp kAllReduceOps[] = {ReduceOp::sum,   ReduceOp::avg,     ReduceOp::min,
                                             ReduceOp::max,   ReduceOp::product, ReduceOp::bit_and,
                                             ReduceOp::bit_or};

// 16-bit floats as plain storage; arithmetic happens in f32, and each result is rounded
// (comm/kernel/reduce.h).
struct Half {
  std::uint16_t bits = 0;
};
struct BFloat16 {
  std::uint16_t bits = 0;
};

// Round to nearest even; NaN stays NaN, overflow goes to infinity.
float to_float(Half value);
float to_float(BFloat16 value);
Half to_half(float value);
BFloat16 to_bfloat16(float value);

std::size_t size_of(DType dtype);  // bytes an element
bool is_float(DType dtype);
const char* to_string(DType dtype);               // "f64", "f32", …
const char* to_string(ReduceOp op);               // "sum", "avg", … "bit_and", "bit_or"
DType parse_dtype(std::string_view text);         // throws UsageError that lists the names
ReduceOp parse_reduce_op(std::string_view text);  // likewise

// Bit operations need integers; everything else works on every type.
bool supports(ReduceOp op, DType dtype);

template <class T>
inline constexpr bool kIsElement = false;
template <class T>
inline constexpr DType kDTypeOf = DType::u8;
#define LOCKSTEP_ELEMENT(type, tag)              \
  template <>                                    \
  inline constexpr bool kIsElement<type> = true; \
  template <>                                    \
  inline constexpr DType kDTypeOf<type> = DType::tag;
LOCKSTEP_ELEMENT(double, f64)
LOCKSTEP_ELEMENT(float, f32)
LOCKSTEP_ELEMENT(Half, f16)
LOCKSTEP_ELEMENT(BFloat16, bf16)
LOCKSTEP_ELEMENT(std::int64_t, i64)
LOCKSTEP_ELEMENT(std::int32_t, i32)
LOCKSTEP_ELEMENT(std::int8_t, i8)
LOCKSTEP_ELEMENT(std::uint8_t, u8)
#undef LOCKSTEP_ELEMENT

}  // namespace lockstep
