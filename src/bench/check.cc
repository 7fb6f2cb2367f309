#include "bench/check.h"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <limits>

namespace lockstep {
namespace {

template <class T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

// The reduction of the ranks' values in plain arithmetic; every intermediate result is exact.
struct Exact {
  std::int64_t whole = 0;  // integers as they wrap, floats as integers
  int divisor = 1;
};

Exact combine_all(const Expectation& e, std::size_t index) {
  Exact result{.whole = pattern_value(0, index, e.op), .divisor = 1};
  for (int r = 1; r < e.workers; ++r) {
    const std::int64_t v = pattern_value(r, index, e.op);
    switch (e.op) {
      case ReduceOp::sum:
      case ReduceOp::avg: result.whole += v; break;
      case ReduceOp::min: result.whole = std::min(result.whole, v); break;
      case ReduceOp::max: result.whole = std::max(result.whole, v); break;
      case ReduceOp::product: result.whole *= v; break;
      case ReduceOp::bit_and: result.whole &= v; break;
      case ReduceOp::bit_or: result.whole |= v; break;
    }
  }
  if (e.op == ReduceOp::avg) result.divisor = e.workers;
  return result;
}

void store(std::byte* at, DType dtype, Exact x) {
  const auto real = static_cast<float>(x.whole) / static_cast<float>(x.divisor);
  switch (dtype) {
    case DType::f64: return put(at, static_cast<double>(x.whole) / x.divisor);
    case DType::f32: return put(at, real);
    case DType::f16: return put(at, to_half(real));
    case DType::bf16: return put(at, to_bfloat16(real));
    case DType::i64: return put(at, x.whole / x.divisor);
    // Integers wrap before they are divided.
    case DType::i32:
      return put(at, static_cast<std::int32_t>(static_cast<std::int32_t>(x.whole) / x.divisor));
    case DType::i8: return put(at, static_cast<std::int8_t>(static_cast<std::int8_t>(x.whole) / x.divisor));
    case DType::u8: return put(at, static_cast<std::uint8_t>(static_cast<std::uint8_t>(x.whole) / x.divisor));
  }
}

template <class T>
T get(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double load(const std::byte* at, DType dtype) {
  switch (dtype) {
    case DType::f64: return get<double>(at);
    case DType::f32: return get<float>(at);
    case DType::f16: return to_float(get<Half>(at));
    case DType::bf16: return to_float(get<BFloat16>(at));
    case DType::i64: return static_cast<double>(get<std::int64_t>(at));
    case DType::i32: return get<std::int32_t>(at);
    case DType::i8: return get<std::int8_t>(at);
    case DType::u8: return get<std::uint8_t>(at);
  }
  return 0;
}

// Compares `count` elements with one period of expected values, the first of which belongs to `data[0]`.
// `first` is where the run starts in the whole output, for the message.
std::optional<std::string> compare(const std::byte* data, std::size_t count, std::size_t first, DType dtype,
                                   const std::function<Exact(std::size_t)>& expected) {
  const std::size_t size = size_of(dtype);
  std::vector<std::byte> period(kPatternPeriod * size);
  for (std::size_t p = 0; p < kPatternPeriod; ++p) store(&period[p * size], dtype, expected(p));
  for (std::size_t i = 0; i < count; i += kPatternPeriod) {
    const std::size_t here = std::min(kPatternPeriod, count - i);
    if (std::memcmp(data + i * size, period.data(), here * size) == 0) continue;
    for (std::size_t p = 0; p < here; ++p) {
      const std::byte* got = data + (i + p) * size;
      if (std::memcmp(got, &period[p * size], size) != 0)
        return fmt::format("element {} is {}, not {}", first + i + p, load(got, dtype),
                           load(&period[p * size], dtype));
    }
  }
  return std::nullopt;
}

}  // namespace

int pattern_value(int rank, std::size_t index, ReduceOp op) {
  const std::size_t p = index % kPatternPeriod;
  const auto mixed = [p](int r) {
    return p * 31 + static_cast<std::size_t>(r) * 17 + (p >> 3) * static_cast<std::size_t>(r);
  };
  if (op == ReduceOp::product) return static_cast<int>(mixed(rank) % 2) + 1;
  const auto level = [&](int r) { return static_cast<int>(mixed(r) % 7); };
  if (op == ReduceOp::sum || op == ReduceOp::avg) return level(rank + 1) - level(rank);
  return level(rank) + 1;
}

void fill_pattern(void* data, std::size_t count, DType dtype, ReduceOp op, int rank, std::size_t first) {
  const std::size_t size = size_of(dtype);
  auto* bytes = static_cast<std::byte*>(data);
  const std::size_t head = std::min(count, kPatternPeriod);
  for (std::size_t i = 0; i < head; ++i)
    store(bytes + i * size, dtype, {.whole = pattern_value(rank, first + i, op), .divisor = 1});
  for (std::size_t i = head; i < count; i += kPatternPeriod)
    std::memcpy(bytes + i * size, bytes, std::min(kPatternPeriod, count - i) * size);
}

std::size_t input_count(const Expectation& e) {
  switch (e.what) {
    case BenchOp::barrier: return 0;
    case BenchOp::all_gather:
    case BenchOp::gather: return e.extent.slice;
    case BenchOp::scatter:
    case BenchOp::broadcast: return e.rank == e.root ? e.extent.total : 0;
    default: return e.extent.total;
  }
}

std::size_t output_count(const Expectation& e) {
  switch (e.what) {
    case BenchOp::barrier: return 0;
    case BenchOp::reduce_scatter:
    case BenchOp::scatter: return e.extent.slice;
    case BenchOp::reduce:
    case BenchOp::gather: return e.rank == e.root ? e.extent.total : 0;
    default: return e.extent.total;
  }
}

std::optional<std::string> find_mistake(const void* out, const Expectation& e) {
  const auto* data = static_cast<const std::byte*>(out);
  const std::size_t count = output_count(e);
  const std::size_t own =
      static_cast<std::size_t>(e.rank) * e.extent.slice;  // where this rank's slice starts
  if (count == 0) return std::nullopt;
  const auto from = [&](int rank, std::size_t shift) {
    return [&e, rank, shift](std::size_t p) {
      return Exact{.whole = pattern_value(rank, shift + p, e.op), .divisor = 1};
    };
  };
  const auto slices = [&](std::size_t shift) -> std::optional<std::string> {
    for (int r = 0; r < e.workers; ++r) {
      const std::size_t first = static_cast<std::size_t>(r) * e.extent.slice;
      auto wrong = compare(data + first * size_of(e.dtype), e.extent.slice, first, e.dtype, from(r, shift));
      if (wrong) return wrong;
    }
    return std::nullopt;
  };
  switch (e.what) {
    case BenchOp::all_reduce:
    case BenchOp::reduce:
      return compare(data, count, 0, e.dtype, [&](std::size_t p) { return combine_all(e, p); });
    case BenchOp::reduce_scatter:
      return compare(data, count, 0, e.dtype, [&](std::size_t p) { return combine_all(e, own + p); });
    case BenchOp::broadcast: return compare(data, count, 0, e.dtype, from(e.root, 0));
    case BenchOp::scatter: return compare(data, count, 0, e.dtype, from(e.root, own));
    case BenchOp::send_recv:
      return compare(data, count, 0, e.dtype, from((e.rank + e.workers - 1) % e.workers, 0));
    case BenchOp::all_gather:
    case BenchOp::gather: return slices(0);
    case BenchOp::all_to_all: return slices(own);
    case BenchOp::barrier: return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace lockstep
