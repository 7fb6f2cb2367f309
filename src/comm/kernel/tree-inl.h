// The loop under every kernel: a canonical tree of N inputs in registers, one pass over memory, each
// result stored to all outs at once. (Writing one out and copying it to the others block by block was
// measured 10 to 40 % slower: the lines of the other outs are at hand when they are their own inputs.)
// Included once per instruction set.
#if defined(LOCKSTEP_KERNEL_TREE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNEL_TREE_INL_H_
#undef LOCKSTEP_KERNEL_TREE_INL_H_
#else
#define LOCKSTEP_KERNEL_TREE_INL_H_
#endif

#include <cstddef>
#include <cstring>

#include "comm/kernel/codec-inl.h"
#include "comm/kernel/kernels.h"
#include "comm/kernel/ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What came of N inputs becomes a node of the tree: an element.
template <std::size_t N, class Codec, class Op, class D>
HWY_INLINE hn::Vec<D> node(D d, hn::Vec<D> v) {
  if constexpr (N > 1 && Op::kRounds)
    return Codec::round(d, v);
  else
    return v;
}

// Vector P of the group at element i: inputs First … First + N - 1, combined as reduce.h defines it, but for
// the rounding of the last result.
template <int P, std::size_t First, std::size_t N, class In, class Op, class D>
HWY_INLINE hn::Vec<D> tree_at(D d, const typename In::Element* const* ins, std::size_t i) {
  if constexpr (N == 1) {
    return In::template load<P>(d, ins[First] + i);
  } else {
    constexpr std::size_t lower = N > 4 ? 4 : N > 2 ? 2 : 1;  // largest power of two below N
    static_assert(N <= 2 * lower);
    const auto a = node<lower, In, Op>(d, tree_at<P, First, lower, In, Op>(d, ins, i));
    const auto b = node<N - lower, In, Op>(d, tree_at<P, First + lower, N - lower, In, Op>(d, ins, i));
    return Op::combine(a, b);
  }
}

// T: what is computed in. In, Out: codecs. A function of static members, so that it can be a Kernel.
template <std::size_t N, class T, class In, class Out, class Op, class Finish>
struct Tree {
  using D = hn::ScalableTag<T>;
  using From = typename In::Element;
  using To = typename Out::Element;

  static HWY_ATTR void run(const Job& job) {
    const D d;
    const std::size_t step = 2 * hn::Lanes(d);
    const auto number = hn::Set(d, static_cast<T>(job.number));
    const From* ins[N];
    for (std::size_t k = 0; k < N; ++k) ins[k] = static_cast<const From*>(job.ins[k]) + job.in_begin;

    std::size_t i = 0;
    for (; i + step <= job.count; i += step)
      group(ins, i, job.outs, job.out_count, job.out_begin + i, number);
    if (i < job.count) last(job, ins, i, number);
  }

 private:
  // Two vectors: enough for loads of several lines to be under way.
  static HWY_INLINE void group(const From* const* ins, std::size_t i, void* const* outs,
                               std::size_t out_count, std::size_t to, hn::Vec<D> number) {
    static_assert(!Out::kInterleaved || In::kInterleaved);
    const D d;
    const typename Out::template Tag<D> dto;
    const auto v0 = finished(tree_at<0, 0, N, In, Op>(d, ins, i), number);
    const auto v1 = finished(tree_at<1, 0, N, In, Op>(d, ins, i), number);
    if constexpr (Out::kInterleaved) {
      const auto both = Out::encode(d, v0, v1);
      for (std::size_t k = 0; k < out_count; ++k) hn::StoreU(both, dto, static_cast<To*>(outs[k]) + to);
    } else {
      const auto first = Out::encode(d, v0);
      const auto second = Out::encode(d, v1);
      for (std::size_t k = 0; k < out_count; ++k) {
        To* const out = static_cast<To*>(outs[k]) + to;
        hn::StoreU(first, dto, out);
        hn::StoreU(second, dto, out + hn::Lanes(d));
      }
    }
  }

  // What encode rounds; where it is not the tree's result itself, that was rounded before.
  static HWY_INLINE hn::Vec<D> finished(hn::Vec<D> v, hn::Vec<D> number) {
    if constexpr (hwy::IsSame<Finish, AsIs>())
      return v;
    else
      return Finish::apply(node<N, In, Op>(D(), v), number);
  }

  // Less than a group, through padded copies: the same instructions, so the same bits.
  static HWY_NOINLINE HWY_ATTR void last(const Job& job, const From* const* ins, std::size_t i,
                                         hn::Vec<D> number) {
    constexpr std::size_t step = 2 * hn::MaxLanes(D());
    const std::size_t left = job.count - i;
    HWY_ALIGN From padded[N][step] = {};
    HWY_ALIGN To result[step];
    const From* at[N];
    for (std::size_t k = 0; k < N; ++k) {
      std::memcpy(padded[k], ins[k] + i, left * sizeof(From));
      at[k] = padded[k];
    }
    void* const out = result;
    group(at, 0, &out, 1, 0, number);
    for (std::size_t k = 0; k < job.out_count; ++k)
      std::memcpy(static_cast<To*>(job.outs[k]) + job.out_begin + i, result, left * sizeof(To));
  }
};

// Fills table[n-1] with the trees of n = 1 … N inputs.
template <std::size_t N, class T, class Codec, class Op, class Finish>
constexpr void fill(Kernel (&table)[kMaxFan]) {
  table[N - 1] = &Tree<N, T, Codec, Codec, Op, Finish>::run;
  if constexpr (N > 1) fill<N - 1, T, Codec, Op, Finish>(table);
}

// All kernels of a storage type and an operation. Sums are what training lives on; the others make do with
// smaller trees, which halves the code.
template <class T, class Codec, class Op, class Finish>
constexpr Kernels make_kernels() {
  constexpr std::size_t fan = hwy::IsSame<Op, Sum>() ? kMaxFan : 4;
  Kernels kernels{};
  kernels.fan = fan;
  fill<fan, T, Codec, Op, AsIs>(kernels.tree);
  fill<fan, T, Codec, Op, Finish>(kernels.finished);
  kernels.finish = kernels.finished[0];  // a tree of one: no operation
  return kernels;
}

template <class T, class Codec, class Op, class Finish = AsIs>
inline constexpr Kernels kKernels = make_kernels<T, Codec, Op, Finish>();

template <class T, class Op>
inline constexpr Kernels kPlainKernels = kKernels<T, Plain<T>, Op>;

// The kernels of a float type. The operation is none of the bit operations.
template <class T, class Codec>
const Kernels& choose_float(ReduceOp op, Finishing finishing) {
  switch (op) {
    case ReduceOp::min: return kKernels<T, Codec, Minimum>;
    case ReduceOp::max: return kKernels<T, Codec, Maximum>;
    case ReduceOp::product: return kKernels<T, Codec, Product>;
    default: break;
  }
  switch (finishing) {
    case Finishing::scale: return kKernels<T, Codec, Sum, Scale>;
    case Finishing::divide: return kKernels<T, Codec, Sum, Divide>;
    case Finishing::none: break;
  }
  return kKernels<T, Codec, Sum>;
}

}  // namespace lockstep::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
