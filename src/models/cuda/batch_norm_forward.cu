#include "models/cuda/batch_norm.h"
#include "models/cuda/column_pass.cuh"
#include "models/cuda/fold.cuh"

namespace lockstep::gpu {
namespace {

template <class T>
struct StatisticsPass {
  using Element = T;
  static constexpr int kSums = 2;
  static constexpr int kUnroll = 4;
  static constexpr bool kBackwards = true;
  const T* x;

  struct Column {
    float first[kWidth<T>];
  };
  struct Loaded {
    Vector<T> x;
  };
  __device__ Column column(std::int64_t c) const {
    Column column;
    const Vector<T> first = load_vector(x, c);
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) column.first[i] = to_float(first.value[i]);
    return column;
  }
  __device__ Loaded load(const Column&, std::int64_t at) const { return {load_vector(x, at)}; }
  __device__ void use(const Loaded& loaded, const Column& column, std::int64_t,
                      float (&sums)[2][kWidth<T>]) const {
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) {
      const float d = to_float(loaded.x.value[i]) - column.first[i];
      sums[0][i] += d;
      sums[1][i] = fmaf(d, d, sums[1][i]);
    }
  }
};

template <class T>
struct StatisticsFinish {
  const T* x;
  double count;
  NormWeights weights;
  NormRunning running;
  NormSaved saved;

  __device__ void operator()(const double (&sums)[2], std::int64_t c) const {
    const double off = sums[0] / count;
    const double mean = static_cast<double>(to_float(x[c])) + off;
    const double spread = sums[1] / count - off * off;
    const double variance = spread < 0 ? 0 : spread;  // a NaN stays one
    const double inverse = 1 / sqrt(variance + weights.epsilon);
    const double scale = static_cast<double>(weights.weight[c]) * inverse;
    saved.mean()[c] = static_cast<float>(mean);
    saved.inverse()[c] = static_cast<float>(inverse);
    saved.scale()[c] = static_cast<float>(scale);
    saved.shift()[c] = static_cast<float>(static_cast<double>(weights.bias[c]) - mean * scale);
    if (running.mean != nullptr) {
      const double keep = 1 - running.momentum;
      const double unbiased = variance * count / (count - 1);
      running.mean[c] =
          static_cast<float>(keep * static_cast<double>(running.mean[c]) + running.momentum * mean);
      running.variance[c] =
          static_cast<float>(keep * static_cast<double>(running.variance[c]) + running.momentum * unbiased);
    }
    if (running.batches != nullptr && c == 0) *running.batches += 1;
  }
};

template <class T, Activation kActivation>
struct ApplyPass {
  using Element = T;
  static constexpr int kSums = 0;
  static constexpr bool kAdd = kActivation == Activation::add_relu;
  static constexpr int kUnroll = kAdd ? 2 : 4;
  static constexpr bool kBackwards = false;
  const T* x;
  const T* residual;
  T* y;
  std::uint8_t* mask;
  NormSaved saved;

  struct Column {
    float scale[kWidth<T>];
    float shift[kWidth<T>];
  };
  struct Loaded {
    Vector<T> x;
    Vector<T> residual;
  };
  __device__ Column column(std::int64_t c) const {
    Column column;
    load_floats<T>(saved.scale(), c, column.scale);
    load_floats<T>(saved.shift(), c, column.shift);
    return column;
  }
  __device__ Loaded load(const Column&, std::int64_t at) const {
    Loaded loaded;
    loaded.x = load_vector(x, at);
    if constexpr (kAdd) loaded.residual = load_vector(residual, at);
    return loaded;
  }
  __device__ void use(const Loaded& loaded, const Column& column, std::int64_t at,
                      float (&)[1][kWidth<T>]) const {
    Vector<T> out;
    unsigned passed = 0;
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) {
      float value = fmaf(to_float(loaded.x.value[i]), column.scale[i], column.shift[i]);
      if constexpr (kAdd) value += to_float(loaded.residual.value[i]);
      if constexpr (kActivation != Activation::none) {
        passed |= static_cast<unsigned>(value > 0) << i;
        value = value < 0 ? 0.0f : value;  // a NaN stays one, as libtorch's does
      }
      out.value[i] = from_float<T>(value);
    }
    store_vector(y, at, out);
    if constexpr (kAdd)
      if (mask != nullptr) mask[at / kWidth<T>] = static_cast<std::uint8_t>(passed);
  }
};

template <class T, Activation kActivation>
void apply_as(const NormApply& a, const ColumnTiles& tiles, NormSaved saved, cudaStream_t stream) {
  run_pass("batch_norm_apply",
           ApplyPass<T, kActivation>{static_cast<const T*>(a.x), static_cast<const T*>(a.residual),
                                     static_cast<T*>(a.y), a.mask, saved},
           tiles, nullptr, stream);
}

}  // namespace

void batch_norm_statistics(Element element, const ColumnTiles& tiles, const void* x,
                           const NormWeights& weights, const NormRunning& running, NormSaved saved,
                           float* partial, cudaStream_t stream) {
  with_element(element, [&]<class T>(T) {
    const T* const values = static_cast<const T*>(x);
    run_pass("batch_norm_statistics", StatisticsPass<T>{values}, tiles, partial, stream);
    fold<2>("batch_norm_statistics",
            StatisticsFinish<T>{values, static_cast<double>(tiles.rows), weights, running, saved}, partial,
            tiles.chunks, tiles.columns, stream);
  });
}

void batch_norm_apply(const NormApply& apply, const ColumnTiles& tiles, NormSaved saved,
                      cudaStream_t stream) {
  with_element(apply.element, [&]<class T>(T) {
    switch (apply.activation) {
      case Activation::none: return apply_as<T, Activation::none>(apply, tiles, saved, stream);
      case Activation::relu: return apply_as<T, Activation::relu>(apply, tiles, saved, stream);
      case Activation::add_relu: return apply_as<T, Activation::add_relu>(apply, tiles, saved, stream);
    }
  });
}

}  // namespace lockstep::gpu
