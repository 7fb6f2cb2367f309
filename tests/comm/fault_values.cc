#include "comm/fault_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "comm/kernel/reduce.h"

namespace lockstep::testing {
namespace {

// One number in any type: small whole ones are exact in all of them.
struct Element {
  std::byte bytes[8];
};

Element element_of(double value, DType dtype) {
  Element element{};
  const auto put = [&](auto number) { std::memcpy(element.bytes, &number, sizeof number); };
  const auto wide = static_cast<float>(value);
  switch (dtype) {
    case DType::f64: put(value); break;
    case DType::f32: put(wide); break;
    case DType::f16:
    case DType::bf16: kernel::narrow(element.bytes, &wide, 1, dtype); break;
    case DType::i64: put(static_cast<std::int64_t>(value)); break;
    case DType::i32: put(static_cast<std::int32_t>(value)); break;
    case DType::i8: put(static_cast<std::int8_t>(value)); break;
    case DType::u8: put(static_cast<std::uint8_t>(value)); break;
  }
  return element;
}

double value_of(const void* data, DType dtype) {
  const auto get = [&]<class T>(T number) {
    std::memcpy(&number, data, sizeof number);
    return static_cast<double>(number);
  };
  switch (dtype) {
    case DType::f64: return get(double{});
    case DType::f32: return get(float{});
    case DType::f16:
    case DType::bf16: {
      float wide = 0;
      kernel::widen(&wide, data, 1, dtype);
      return wide;
    }
    case DType::i64: return get(std::int64_t{});
    case DType::i32: return get(std::int32_t{});
    case DType::i8: return get(std::int8_t{});
    case DType::u8: return get(std::uint8_t{});
  }
  return 0;
}

// What `rank` gives at `element` of its input. Sums and products of eight ranks fit every type.
double given(const Call& call, int rank, std::size_t element) {
  const auto mixed = static_cast<std::size_t>(rank) + element;
  return reduces(call.what) ? 1 + static_cast<double>(mixed % 2)
                            : 1 + static_cast<double>((mixed * 7 + element / 3) % 100);
}

double reduced(const Call& call, int size, std::size_t element) {
  double result = given(call, 0, element);
  for (int r = 1; r < size; ++r) {
    const double next = given(call, r, element);
    switch (call.op) {
      case ReduceOp::sum:
      case ReduceOp::avg: result += next; break;
      case ReduceOp::product: result *= next; break;
      case ReduceOp::min: result = std::min(result, next); break;
      case ReduceOp::max: result = std::max(result, next); break;
      case ReduceOp::bit_and: result = static_cast<int>(result) & static_cast<int>(next); break;
      case ReduceOp::bit_or: result = static_cast<int>(result) | static_cast<int>(next); break;
    }
  }
  if (call.op != ReduceOp::avg) return result;
  const bool whole = call.dtype != DType::f64 && call.dtype != DType::f32 && call.dtype != DType::f16 &&
                     call.dtype != DType::bf16;
  return whole ? std::trunc(result / size) : result / size;
}

}  // namespace

void give(void* data, std::size_t count, DType dtype, const Call& call, int rank) {
  constexpr std::size_t kPeriod = 600;  // of what is given, over elements
  const std::size_t bytes = size_of(dtype);
  auto* const to = static_cast<std::byte*>(data);
  for (std::size_t i = 0; i < count; ++i) {
    const Element element = i < kPeriod ? element_of(given(call, rank, i), dtype) : Element{};
    std::memcpy(to + i * bytes, i < kPeriod ? element.bytes : to + (i - kPeriod) * bytes, bytes);
  }
}

void spoil(void* data, std::size_t bytes) { std::memset(data, 0x7d, bytes); }

std::string find_wrong(const void* data, const Call& call, int rank, int size) {
  const bool root = rank == call.root;
  int slices = 0;  // of `call.count` elements
  switch (call.what) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
    case Collective::broadcast:
    case Collective::scatter:
    case Collective::recv: slices = 1; break;
    case Collective::reduce: slices = root ? 1 : 0; break;
    case Collective::all_gather:
    case Collective::all_to_all: slices = size; break;
    case Collective::gather: slices = root ? size : 0; break;
    default: return {};
  }
  const bool by_source = call.what == Collective::all_gather || call.what == Collective::all_to_all ||
                         call.what == Collective::gather;
  // Where an element of what this rank got was in the inputs: those of slices begin at its own one.
  const bool sliced = call.what == Collective::all_to_all || call.what == Collective::scatter ||
                      call.what == Collective::reduce_scatter;
  const std::size_t before = sliced ? static_cast<std::size_t>(rank) * call.count : 0;
  const auto expected = [&](int slice, std::size_t i) {
    return reduces(call.what) ? reduced(call, size, before + i)
                              : given(call, by_source ? slice : call.root, before + i);
  };
  const std::size_t step = call.count / 61 + 1;  // some of many, and the last
  const auto* const from = static_cast<const std::byte*>(data);
  for (int slice = 0; slice < slices; ++slice)
    for (std::size_t k = 0; k < call.count + step; k += step) {
      if (call.count == 0) break;
      const std::size_t i = std::min(k, call.count - 1);
      const std::size_t at = static_cast<std::size_t>(slice) * call.count + i;
      const double got = value_of(from + at * size_of(call.dtype), call.dtype);
      const double want = expected(slice, i);
      if (std::abs(got - want) <= (call.op == ReduceOp::avg ? 0.02 : 0)) continue;
      return call.describe() + " gave " + std::to_string(got) + " at element " + std::to_string(at) +
             " instead of " + std::to_string(want);
    }
  return {};
}

}  // namespace lockstep::testing
