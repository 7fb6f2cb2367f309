// The kernels of layer_kernels.h for every instruction set, and the choice among them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/layer_kernels.cc"
// clang-format off: foreach_target.h must come before highway.h
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <cstring>

#include "comm/kernel/codec-inl.h"
#include "hwy/highway.h"
#include "optim/layer_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most one block as numbers of the arithmetic's type, in the cache; padded with zeros to whole vectors.
template <class T, class Codec>
class Tile {
 public:
  using D = hn::ScalableTag<T>;
  using E = typename Codec::Element;

  HWY_ATTR void load(const void* from, std::size_t begin, std::size_t count) {
    const D d;
    const E* const source = static_cast<const E*>(from) + begin;
    const std::size_t step = 2 * hn::Lanes(d);
    std::size_t i = 0;
    for (; i + step <= count; i += step) load_group(source + i, i);
    if (i == count) return;
    HWY_ALIGN E padded[2 * hn::MaxLanes(D())] = {};
    std::memcpy(padded, source + i, (count - i) * sizeof(E));
    load_group(padded, i);
  }

  // As elements of another type where `To` says so.
  template <class To = Codec>
  HWY_ATTR void store(void* to, std::size_t begin, std::size_t count) const {
    using S = typename To::Element;
    const D d;
    const typename To::template Tag<D> encoded;
    S* const target = static_cast<S*>(to) + begin;
    std::size_t i = 0;
    for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d))
      hn::StoreU(To::encode(d, hn::Load(d, values_ + i)), encoded, target + i);
    if (i == count) return;
    HWY_ALIGN S padded[hn::MaxLanes(D())] = {};
    hn::StoreU(To::encode(d, hn::Load(d, values_ + i)), encoded, padded);
    std::memcpy(target + i, padded, (count - i) * sizeof(S));
  }

  T* values() { return values_; }

 private:
  HWY_INLINE void load_group(const E* from, std::size_t at) {
    const D d;
    hn::Store(Codec::template load<0>(d, from), d, values_ + at);
    hn::Store(Codec::template load<1>(d, from), d, values_ + at + hn::Lanes(d));
  }

  HWY_ALIGN T values_[kBlockElements];
};

template <class T>
struct LambConstants {
  explicit LambConstants(const LambUpdate& lamb)
      : beta1(static_cast<T>(lamb.beta1)),
        rest1(static_cast<T>(1 - lamb.beta1)),
        beta2(static_cast<T>(lamb.beta2)),
        rest2(static_cast<T>(1 - lamb.beta2)),
        eps(static_cast<T>(lamb.eps)),
        gain(static_cast<T>(1 / lamb.correction1)),
        correction2(static_cast<T>(lamb.correction2)),
        weight_decay(static_cast<T>(lamb.weight_decay)) {}
  T beta1, rest1, beta2, rest2, eps, gain, correction2, weight_decay;
};

template <class D, class T, class V = hn::Vec<D>>
HWY_INLINE V direction(D d, const LambConstants<T>& c, V p, V first, V second) {
  const V scale = hn::Add(hn::Div(hn::Sqrt(second), hn::Set(d, c.correction2)), hn::Set(d, c.eps));
  const V adam = hn::Div(hn::Mul(first, hn::Set(d, c.gain)), scale);
  return hn::MulAdd(p, hn::Set(d, c.weight_decay), adam);
}

// Calls body(begin, count) for tiles of at most one block.
template <class Body>
HWY_INLINE void by_tiles(std::size_t count, const Body& body) {
  for (std::size_t begin = 0; begin < count; begin += kBlockElements)
    body(begin, std::min(kBlockElements, count - begin));
}

// Codec: of parameters and gradients. Kept: of the state, and of master weights where there are any.
template <class T, class Codec, class Kept>
HWY_ATTR void moments_of_type(const Elements& elements, const LambUpdate& lamb) {
  const LambConstants<T> c(lamb);
  const auto factor = static_cast<T>(elements.gradient_factor);
  by_tiles(elements.count, [&](std::size_t begin, std::size_t count) HWY_ATTR {
    const hn::ScalableTag<T> d;
    Tile<T, Codec> g;
    Tile<T, Kept> first, second;
    g.load(elements.gradient, begin, count);
    first.load(elements.first, begin, count);
    second.load(elements.second, begin, count);
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
      const auto grad = hn::Mul(hn::Load(d, g.values() + i), hn::Set(d, factor));  // exact by one
      const auto m = hn::Load(d, first.values() + i);
      const auto v = hn::Load(d, second.values() + i);
      hn::Store(hn::MulAdd(grad, hn::Set(d, c.rest1), hn::Mul(m, hn::Set(d, c.beta1))), d,
                first.values() + i);
      hn::Store(hn::MulAdd(hn::Mul(grad, hn::Set(d, c.rest2)), grad, hn::Mul(v, hn::Set(d, c.beta2))), d,
                second.values() + i);
    }
    first.store(elements.first, begin, count);
    second.store(elements.second, begin, count);
  });
}

// What the direction needs of one tile.
template <class T, class Kept>
class LambTile {
 public:
  HWY_ATTR LambTile(const Elements& elements, std::size_t begin, std::size_t count) {
    p.load(elements.kept_parameter(), begin, count);
    first.load(elements.first, begin, count);
    second.load(elements.second, begin, count);
  }
  // What `use(p, u)` makes of it, in place of p.
  template <class Use>
  HWY_INLINE void apply(const LambConstants<T>& c, std::size_t count, const Use& use) {
    const hn::ScalableTag<T> d;
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
      const auto x = hn::Load(d, p.values() + i);
      const auto u = direction(d, c, x, hn::Load(d, first.values() + i), hn::Load(d, second.values() + i));
      hn::Store(use(x, u), d, p.values() + i);
    }
  }
  Tile<T, Kept> p, first, second;
};

template <class T, class Kept>
HWY_ATTR void direction_of_type(const Elements& elements, const LambUpdate& lamb, double* u) {
  using V = hn::Vec<hn::ScalableTag<T>>;
  const LambConstants<T> c(lamb);
  by_tiles(elements.count, [&](std::size_t begin, std::size_t count) HWY_ATTR {
    LambTile<T, Kept> tile(elements, begin, count);
    tile.apply(c, count, [](V, V way) HWY_ATTR { return way; });
    std::copy_n(tile.p.values(), count, u + begin);
  });
}

template <class T, class Codec, class Kept>
HWY_ATTR void step_of_type(const Elements& elements, const LambUpdate& lamb, double rate) {
  using V = hn::Vec<hn::ScalableTag<T>>;
  const LambConstants<T> c(lamb);
  const hn::ScalableTag<T> d;
  by_tiles(elements.count, [&](std::size_t begin, std::size_t count) HWY_ATTR {
    LambTile<T, Kept> tile(elements, begin, count);
    tile.apply(c, count,
               [&](V p, V way) HWY_ATTR { return hn::MulAdd(way, hn::Set(d, static_cast<T>(-rate)), p); });
    if (elements.master != nullptr) tile.p.store(elements.master, begin, count);
    tile.p.template store<Codec>(elements.parameter, begin, count);
  });
}

template <class T, class Codec>
HWY_ATTR void widen_type(const void* from, double* to, std::size_t count) {
  by_tiles(count, [&](std::size_t begin, std::size_t length) HWY_ATTR {
    Tile<T, Codec> tile;
    tile.load(from, begin, length);
    std::copy_n(tile.values(), length, to + begin);
  });
}

// Calls run<arithmetic type, codec, codec of what is kept>() for a type of elements.
template <class Run>
HWY_INLINE void by_type(DType dtype, bool master, const Run& run) {
  using Wide = Plain<float>;
  switch (dtype) {
    case DType::f32: return run.template operator()<float, Wide, Wide>();
    case DType::f64: return run.template operator()<double, Plain<double>, Plain<double>>();
    case DType::f16:
      return master ? run.template operator()<float, F16, Wide>()
                    : run.template operator()<float, F16, F16>();
    default:
      return master ? run.template operator()<float, Bf16, Wide>()
                    : run.template operator()<float, Bf16, Bf16>();
  }
}

void widen_here(DType dtype, const void* from, double* to, std::size_t count) {
  by_type(dtype, false, [&]<class T, class Codec, class>() { widen_type<T, Codec>(from, to, count); });
}
void moments_here(const Elements& elements, const LambUpdate& lamb) {
  by_type(elements.dtype, elements.master != nullptr,
          [&]<class T, class Codec, class Kept>() { moments_of_type<T, Codec, Kept>(elements, lamb); });
}
void direction_here(const Elements& elements, const LambUpdate& lamb, double* u) {
  by_type(elements.dtype, elements.master != nullptr,
          [&]<class T, class, class Kept>() { direction_of_type<T, Kept>(elements, lamb, u); });
}
void step_here(const Elements& elements, const LambUpdate& lamb, double rate) {
  by_type(elements.dtype, elements.master != nullptr,
          [&]<class T, class Codec, class Kept>() { step_of_type<T, Codec, Kept>(elements, lamb, rate); });
}

// Sixteen sums side by side, whatever the vectors' length: the compiler puts them into vectors of this
// instruction set.
HWY_ATTR double sum_here(const double* x, std::size_t count) {
  constexpr std::size_t kSums = 16;
  double sums[kSums] = {};
  std::size_t i = 0;
  for (; i + kSums <= count; i += kSums)
    for (std::size_t k = 0; k < kSums; ++k) sums[k] += x[i + k] * x[i + k];
  for (std::size_t k = 0; i < count; ++i, ++k) sums[k] += x[i] * x[i];
  for (std::size_t half = kSums / 2; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  return sums[0];
}

}  // namespace lockstep::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernel {

HWY_EXPORT(widen_here);
HWY_EXPORT(moments_here);
HWY_EXPORT(direction_here);
HWY_EXPORT(step_here);
HWY_EXPORT(sum_here);

double sum_of_squares(const double* values, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(sum_here)(values, count);
}
void widen(DType dtype, const void* from, double* to, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(widen_here)(dtype, from, to, count);
}
void lamb_moments(const Elements& elements, const LambUpdate& lamb) {
  HWY_DYNAMIC_DISPATCH(moments_here)(elements, lamb);
}
void lamb_direction(const Elements& elements, const LambUpdate& lamb, double* u) {
  HWY_DYNAMIC_DISPATCH(direction_here)(elements, lamb, u);
}
void lamb_step(const Elements& elements, const LambUpdate& lamb, double rate) {
  HWY_DYNAMIC_DISPATCH(step_here)(elements, lamb, rate);
}

}  // namespace lockstep::kernel
#endif
