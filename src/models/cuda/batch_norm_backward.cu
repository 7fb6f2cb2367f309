// With g = dy where ReLU let the value pass, N values a channel, x̂ = (x - mean) · inverse:
//   d_bias = Σ g      d_weight = Σ g · x̂
//   dx = scale · (g - Σg / N - x̂ · Σ(g · x̂) / N) = scale · g + slope · x + offset
#include "models/cuda/batch_norm.h"
#include "models/cuda/column_pass.cuh"
#include "models/cuda/fold.cuh"

namespace lockstep::gpu {
namespace {

template <class T, Activation kActivation>
struct SumsPass {
  using Element = T;
  static constexpr int kSums = 2;
  static constexpr int kUnroll = 2;
  static constexpr bool kBackwards = true;
  static constexpr bool kAdd = kActivation == Activation::add_relu;
  const T* dy;
  const T* dy_more;
  const T* x;
  const std::uint8_t* mask;
  T* d_residual;
  NormSaved saved;

  struct Column {
    float mean[kWidth<T>];
    float scale[kWidth<T>];
    float shift[kWidth<T>];
  };
  struct Loaded {
    Vector<T> dy;
    Vector<T> dy_more;
    Vector<T> x;
    std::uint8_t passed;
  };
  __device__ Column column(std::int64_t c) const {
    Column column;
    load_floats<T>(saved.mean(), c, column.mean);
    if constexpr (kActivation == Activation::relu) {
      load_floats<T>(saved.scale(), c, column.scale);
      load_floats<T>(saved.shift(), c, column.shift);
    }
    return column;
  }
  __device__ Loaded load(const Column&, std::int64_t at) const {
    Loaded loaded;
    loaded.dy = load_vector(dy, at);
    loaded.x = load_vector(x, at);
    if constexpr (kAdd) {
      if (dy_more != nullptr) loaded.dy_more = load_vector(dy_more, at);
      loaded.passed = mask[at / kWidth<T>];
    }
    return loaded;
  }
  __device__ void use(const Loaded& loaded, const Column& column, std::int64_t at,
                      float (&sums)[2][kWidth<T>]) const {
    Vector<T> behind;
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) {
      const float value = to_float(loaded.x.value[i]);
      float g = to_float(loaded.dy.value[i]);
      if constexpr (kAdd) {
        if (dy_more != nullptr) g = rounded<T>(g + to_float(loaded.dy_more.value[i]));
        if ((loaded.passed >> i & 1) == 0) g = 0;
        behind.value[i] = from_float<T>(g);
      }
      if constexpr (kActivation == Activation::relu)
        if (!(fmaf(value, column.scale[i], column.shift[i]) > 0)) g = 0;
      sums[0][i] += g;
      sums[1][i] = fmaf(g, value - column.mean[i], sums[1][i]);
    }
    if constexpr (kAdd) store_vector(d_residual, at, behind);
  }
};

struct SumsFinish {
  double count;
  NormSaved saved;
  float* d_weight;
  float* d_bias;
  float* slope;
  float* offset;

  __device__ void operator()(const double (&sums)[2], std::int64_t c) const {
    const double mean = static_cast<double>(saved.mean()[c]);
    const double inverse = static_cast<double>(saved.inverse()[c]);
    const double scale = static_cast<double>(saved.scale()[c]);
    const double down = -scale * inverse * inverse * sums[1] / count;
    d_bias[c] = static_cast<float>(sums[0]);
    d_weight[c] = static_cast<float>(sums[1] * inverse);
    slope[c] = static_cast<float>(down);
    offset[c] = static_cast<float>(-scale * sums[0] / count - down * mean);
  }
};

// `dy` is what ReLU let pass already, unless kMasks.
template <class T, bool kMasks>
struct InputPass {
  using Element = T;
  static constexpr int kSums = 0;
  static constexpr int kUnroll = 2;
  static constexpr bool kBackwards = false;
  const T* dy;
  const T* x;
  T* dx;
  NormSaved saved;
  const float* slope;
  const float* offset;

  struct Column {
    float scale[kWidth<T>];
    float shift[kWidth<T>];
    float slope[kWidth<T>];
    float offset[kWidth<T>];
  };
  struct Loaded {
    Vector<T> dy;
    Vector<T> x;
  };
  __device__ Column column(std::int64_t c) const {
    Column column;
    load_floats<T>(saved.scale(), c, column.scale);
    if constexpr (kMasks) load_floats<T>(saved.shift(), c, column.shift);
    load_floats<T>(slope, c, column.slope);
    load_floats<T>(offset, c, column.offset);
    return column;
  }
  __device__ Loaded load(const Column&, std::int64_t at) const {
    return {load_vector(dy, at), load_vector(x, at)};
  }
  __device__ void use(const Loaded& loaded, const Column& column, std::int64_t at,
                      float (&)[1][kWidth<T>]) const {
    Vector<T> out;
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) {
      const float value = to_float(loaded.x.value[i]);
      float g = to_float(loaded.dy.value[i]);
      if constexpr (kMasks)
        if (!(fmaf(value, column.scale[i], column.shift[i]) > 0)) g = 0;
      out.value[i] = from_float<T>(fmaf(column.scale[i], g, fmaf(column.slope[i], value, column.offset[i])));
    }
    store_vector(dx, at, out);
  }
};

template <class T, Activation kActivation>
void backward_as(const NormBackward& b, const ColumnTiles& tiles, NormSaved saved, cudaStream_t stream) {
  const T* const x = static_cast<const T*>(b.x);
  const T* const dy = static_cast<const T*>(b.dy);
  T* const d_residual = static_cast<T*>(b.d_residual);
  float* const slope = b.coefficients;
  float* const offset = b.coefficients + tiles.columns;
  run_pass("batch_norm_backward sums",
           SumsPass<T, kActivation>{dy, static_cast<const T*>(b.dy_more), x, b.mask, d_residual, saved},
           tiles, b.partial, stream);
  fold<2>("batch_norm_backward sums",
          SumsFinish{static_cast<double>(tiles.rows), saved, b.d_weight, b.d_bias, slope, offset}, b.partial,
          tiles.chunks, tiles.columns, stream);
  constexpr bool kMasks = kActivation == Activation::relu;
  const T* const behind = kActivation == Activation::add_relu ? d_residual : dy;
  run_pass("batch_norm_backward dx",
           InputPass<T, kMasks>{behind, x, static_cast<T*>(b.dx), saved, slope, offset}, tiles, nullptr,
           stream);
}

}  // namespace

void batch_norm_backward(const NormBackward& backward, const ColumnTiles& tiles, NormSaved saved,
                         cudaStream_t stream) {
  with_element(backward.element, [&]<class T>(T) {
    switch (backward.activation) {
      case Activation::none: return backward_as<T, Activation::none>(backward, tiles, saved, stream);
      case Activation::relu: return backward_as<T, Activation::relu>(backward, tiles, saved, stream);
      case Activation::add_relu: return backward_as<T, Activation::add_relu>(backward, tiles, saved, stream);
    }
  });
}

}  // namespace lockstep::gpu
