#include "models/cuda/column_pass.cuh"
#include "models/cuda/fold.cuh"
#include "models/cuda/linear.h"

namespace lockstep::gpu {
namespace {

constexpr float kRootHalf = 0.70710678118654752f;  // 1 / √2
constexpr float kDensity = 0.39894228040143268f;   // 1 / √(2π)

struct Normal {
  float up_to;    // Φ(x)
  float density;  // φ(x)
};

// For f32 by the library's erf. For 16 bits by formula 7.1.26 of Abramowitz and Stegun, whose error is
// below 1.5e-7 and whose exponential is the density's.
template <class T>
__device__ Normal normal_at(float x) {
  if constexpr (sizeof(T) == 4) {
    return {0.5f * (1.0f + erff(x * kRootHalf)), kDensity * expf(-0.5f * x * x)};
  } else {
    const float e = exp2f(-0.72134752044448170f * x * x);  // log₂(e) / 2
    const float t = 1.0f / fmaf(0.3275911f * kRootHalf, fabsf(x), 1.0f);
    float p = fmaf(1.061405429f, t, -1.453152027f);
    p = fmaf(p, t, 1.421413741f);
    p = fmaf(p, t, -0.284496736f);
    p = fmaf(p, t, 0.254829592f);
    const float tail = 0.5f * p * t * e;  // Φ(-|x|)
    return {x < 0 ? tail : 1.0f - tail, kDensity * e};
  }
}

struct Nothing {};

template <class T>
struct GeluPass {
  using Element = T;
  static constexpr int kSums = 0;
  static constexpr int kUnroll = 4;
  static constexpr bool kBackwards = true;
  const T* x;
  T* y;

  using Column = Nothing;
  struct Loaded {
    Vector<T> x;
  };
  __device__ Column column(std::int64_t) const { return {}; }
  __device__ Loaded load(const Column&, std::int64_t at) const { return {load_vector(x, at)}; }
  __device__ void use(const Loaded& loaded, const Column&, std::int64_t at, float (&)[1][kWidth<T>]) const {
    Vector<T> out;
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) {
      const float value = to_float(loaded.x.value[i]);
      out.value[i] = from_float<T>(value * normal_at<T>(value).up_to);
    }
    store_vector(y, at, out);
  }
};

template <class T>
struct GeluBackwardPass {
  using Element = T;
  static constexpr int kSums = 1;
  static constexpr int kUnroll = 2;
  static constexpr bool kBackwards = true;
  const T* dy;
  const T* x;
  T* dx;

  using Column = Nothing;
  struct Loaded {
    Vector<T> dy;
    Vector<T> x;
  };
  __device__ Column column(std::int64_t) const { return {}; }
  __device__ Loaded load(const Column&, std::int64_t at) const {
    return {load_vector(dy, at), load_vector(x, at)};
  }
  __device__ void use(const Loaded& loaded, const Column&, std::int64_t at,
                      float (&sums)[1][kWidth<T>]) const {
    Vector<T> out;
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) {
      const float value = to_float(loaded.x.value[i]);
      const Normal normal = normal_at<T>(value);
      out.value[i] = from_float<T>(to_float(loaded.dy.value[i]) * fmaf(value, normal.density, normal.up_to));
      sums[0][i] += to_float(out.value[i]);
    }
    store_vector(dx, at, out);
  }
};

template <class T>
struct ColumnSumsPass {
  using Element = T;
  static constexpr int kSums = 1;
  static constexpr int kUnroll = 4;
  static constexpr bool kBackwards = true;
  const T* x;

  using Column = Nothing;
  struct Loaded {
    Vector<T> x;
  };
  __device__ Column column(std::int64_t) const { return {}; }
  __device__ Loaded load(const Column&, std::int64_t at) const { return {load_vector(x, at)}; }
  __device__ void use(const Loaded& loaded, const Column&, std::int64_t, float (&sums)[1][kWidth<T>]) const {
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) sums[0][i] += to_float(loaded.x.value[i]);
  }
};

template <class T>
struct WeavePass {
  using Element = T;
  static constexpr int kSums = 1;
  static constexpr int kUnroll = 4;
  static constexpr bool kBackwards = true;
  const T* queries;
  const T* keys;
  const T* values;
  T* woven;
  std::int64_t depth;

  struct Column {
    const T* from;  // of this column, in row 0
    std::int64_t columns_before;
  };
  struct Loaded {
    Vector<T> x;
  };
  __device__ Column column(std::int64_t c) const {
    const std::int64_t head = c / (3 * depth);
    const std::int64_t part = c / depth % 3;
    const T* const whole = part == 0 ? queries : part == 1 ? keys : values;
    return {whole + head * depth + c % depth, c};
  }
  // A row of a part is a third of a woven one.
  __device__ Loaded load(const Column& column, std::int64_t at) const {
    const auto row_start = static_cast<std::uint64_t>(at - column.columns_before);
    return {load_vector(column.from, static_cast<std::int64_t>(row_start / 3))};
  }
  __device__ void use(const Loaded& loaded, const Column&, std::int64_t at,
                      float (&sums)[1][kWidth<T>]) const {
    store_vector(woven, at, loaded.x);
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) sums[0][i] += to_float(loaded.x.value[i]);
  }
};

template <class T>
struct StoreSums {
  T* to;
  __device__ void operator()(const double (&sums)[1], std::int64_t c) const {
    to[c] = from_float<T>(static_cast<float>(sums[0]));
  }
};

template <class Pass>
void run_with_sums(const char* name, const Pass& pass, const ColumnTiles& tiles, void* sums, float* partial,
                   cudaStream_t stream) {
  using T = typename Pass::Element;
  run_pass(name, pass, tiles, partial, stream);
  fold<1>(name, StoreSums<T>{static_cast<T*>(sums)}, partial, tiles.chunks, tiles.columns, stream);
}

}  // namespace

void gelu_forward(Element element, const ColumnTiles& tiles, const void* x, void* y, cudaStream_t stream) {
  with_element(element, [&]<class T>(T) {
    run_pass("gelu_forward", GeluPass<T>{static_cast<const T*>(x), static_cast<T*>(y)}, tiles, nullptr,
             stream);
  });
}

void gelu_backward(const GeluBackward& b, const ColumnTiles& tiles, cudaStream_t stream) {
  with_element(b.element, [&]<class T>(T) {
    const GeluBackwardPass<T> pass{static_cast<const T*>(b.dy), static_cast<const T*>(b.x),
                                   static_cast<T*>(b.dx)};
    run_with_sums("gelu_backward", pass, tiles, b.d_bias, b.partial, stream);
  });
}

void column_sums(Element element, const ColumnTiles& tiles, const void* x, void* sums, float* partial,
                 cudaStream_t stream) {
  with_element(element, [&]<class T>(T) {
    run_with_sums("column_sums", ColumnSumsPass<T>{static_cast<const T*>(x)}, tiles, sums, partial, stream);
  });
}

void weave_heads(const WeaveHeads& w, const ColumnTiles& tiles, cudaStream_t stream) {
  with_element(w.element, [&]<class T>(T) {
    const WeavePass<T> pass{static_cast<const T*>(w.parts[0]), static_cast<const T*>(w.parts[1]),
                            static_cast<const T*>(w.parts[2]), static_cast<T*>(w.woven), w.depth};
    run_with_sums("weave_heads", pass, tiles, w.sums, w.partial, stream);
  });
}

}  // namespace lockstep::gpu
