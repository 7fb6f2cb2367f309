#include "comm/kernel/reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include "comm/kernel/kernels.h"
#include "lockstep/base/error.h"

namespace lockstep::kernel {
namespace {

// Temporaries of large trees: one block a level, on the stack, small enough to stay in the first cache.
constexpr std::size_t kBlockBytes = 4096;

struct Chosen {
  const Kernels& kernels;
  double number;  // Job::number
  std::size_t element_bytes;

  std::size_t block() const { return kBlockBytes / element_bytes; }
};

bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

Chosen choose(const Reduction& reduction) {
  const auto [dtype, op, divisor] = reduction;
  if (!supports(op, dtype))
    throw UsageError(std::string("reduction ") + to_string(op) + " of " + to_string(dtype) +
                     "; bit operations need i64, i32, i8 or u8");
  if (op == ReduceOp::avg && !accepts_divisor(dtype, divisor))
    throw UsageError("avg of " + std::string(to_string(dtype)) + " with divisor " + std::to_string(divisor) +
                     "; accepted: a positive number, for integers a whole one");
  const std::size_t bytes = size_of(dtype);
  if (!is_float(dtype)) return {integer_kernels(dtype, op, divisor), divisor, bytes};

  Finishing finishing = Finishing::none;
  double number = 1;
  if (op == ReduceOp::avg && divisor != 1) {
    int exponent = 0;
    const bool power = std::frexp(divisor, &exponent) == 0.5 && std::abs(exponent) < 100;
    finishing = power ? Finishing::scale : Finishing::divide;
    number = power ? 1.0 / divisor : divisor;
  }
  return {is_half(dtype) ? half_kernels(dtype, op, finishing) : float_kernels(dtype, op, finishing), number,
          bytes};
}

struct Block {
  alignas(64) std::byte data[kBlockBytes];
};

// The tree of `ins` over elements [begin, begin + count), count <= chosen.block(), without finish, to
// the start of `out`, which is no input. A subtree of at most `fan` inputs, split off at powers of two,
// is one kernel; so the order is canonical whatever the fan.
void tree_block(const Chosen& chosen, std::byte* out, std::span<const void* const> ins, std::size_t begin,
                std::size_t count) {
  const std::size_t n = ins.size();
  void* const outs[] = {out};
  if (n <= chosen.kernels.fan) {
    chosen.kernels.tree[n - 1]({outs, 1, 0, ins.data(), begin, count, chosen.number});
    return;
  }
  Block upper;
  const std::size_t lower_n = std::bit_floor(n - 1);
  tree_block(chosen, out, ins.first(lower_n), begin, count);
  tree_block(chosen, upper.data, ins.subspan(lower_n), begin, count);
  const void* const halves[] = {out, upper.data};
  chosen.kernels.tree[1]({outs, 1, 0, halves, 0, count, chosen.number});
}

}  // namespace

void reduce_tree(std::span<void* const> outs, std::span<const void* const> ins, std::size_t count,
                 const Reduction& reduction) {
  const Chosen chosen = choose(reduction);
  const Kernels& kernels = chosen.kernels;
  if (outs.empty() || count == 0) return;
  if (ins.size() <= kernels.fan && kernels.finished[ins.size() - 1] != nullptr) {
    kernels.finished[ins.size() - 1]({outs.data(), outs.size(), 0, ins.data(), 0, count, chosen.number});
    return;
  }
  // An out that is also an in is safe: a block's inputs have been read when its result is written.
  Block block;
  const void* const data = block.data;
  for (std::size_t begin = 0; begin < count; begin += chosen.block()) {
    const std::size_t some = std::min(chosen.block(), count - begin);
    tree_block(chosen, block.data, ins, begin, some);
    kernels.finish({outs.data(), outs.size(), begin, &data, 0, some, chosen.number});
  }
}

Reduction partial(Reduction reduction) {
  if (reduction.op == ReduceOp::avg) reduction.op = ReduceOp::sum;
  return reduction;
}

void combine(void* out, const void* a, const void* b, std::size_t count, const Reduction& reduction) {
  const Chosen chosen = choose(reduction);
  const void* const ins[] = {a, b};
  if (count > 0) chosen.kernels.tree[1]({&out, 1, 0, ins, 0, count, chosen.number});
}

void finish(void* out, const void* in, std::size_t count, const Reduction& reduction) {
  const Chosen chosen = choose(reduction);
  if (count == 0) return;
  if (reduction.op == ReduceOp::avg && reduction.divisor != 1)
    chosen.kernels.finish({&out, 1, 0, &in, 0, count, chosen.number});
  else if (out != in)
    std::memcpy(out, in, count * chosen.element_bytes);
}

bool accepts_divisor(DType dtype, double divisor) {
  if (!(divisor > 0) || !std::isfinite(divisor)) return false;
  return is_float(dtype) || (divisor == std::floor(divisor) && divisor < 0x1p31);
}

void widen(void* out, const void* in, std::size_t count, DType from) {
  if (count > 0) half_conversions(from).widen({&out, 1, 0, &in, 0, count, 1});
}

void narrow(void* out, const void* in, std::size_t count, DType to) {
  if (count > 0) half_conversions(to).narrow({&out, 1, 0, &in, 0, count, 1});
}

}  // namespace lockstep::kernel
