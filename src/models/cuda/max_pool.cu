#include "models/cuda/launch.cuh"
#include "models/cuda/max_pool.h"
#include "models/cuda/vector.cuh"

namespace lockstep::gpu {
namespace {

constexpr int kPoolThreads = 256;

// A vector's worth of bytes, moved at once.
template <class T>
struct alignas(kWidth<T>) Bytes {
  std::uint8_t value[kWidth<T>];
};

// Image, row, place and vector of channels that a thread has; `inside`: there is such a one.
struct Spot {
  std::int64_t image, row, place, channel;
  bool inside;
};
template <class T>
__device__ Spot spot_of(std::int64_t images, std::int64_t height, std::int64_t width, std::int64_t channels) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kPoolThreads + threadIdx.x;
  const auto vectors = static_cast<unsigned>(channels / kWidth<T>);
  const bool inside = index < images * height * width * vectors;
  auto rest = static_cast<unsigned>(index);  // below 2³¹, which the launch checks
  const unsigned vector = rest % vectors;
  rest /= vectors;
  const unsigned place = rest % static_cast<unsigned>(width);
  rest /= static_cast<unsigned>(width);
  const unsigned row = rest % static_cast<unsigned>(height);
  return {rest / static_cast<unsigned>(height), row, place, static_cast<std::int64_t>(vector) * kWidth<T>,
          inside};
}

template <class T>
__global__ void __launch_bounds__(kPoolThreads)
    pool_kernel(PoolShape shape, const T* x, T* y, std::uint8_t* chosen) {
  const Spot out = spot_of<T>(shape.images, shape.out_height(), shape.out_width(), shape.channels);
  if (!out.inside) return;
  float largest[kWidth<T>];
  Bytes<T> which;
  bool any = false;
  for (int dr = 0; dr < 3; ++dr)
    for (int dp = 0; dp < 3; ++dp) {
      const std::int64_t row = 2 * out.row - 1 + dr, place = 2 * out.place - 1 + dp;
      if (row < 0 || row >= shape.height || place < 0 || place >= shape.width) continue;
      const Vector<T> values = load_vector(
          x, ((out.image * shape.height + row) * shape.width + place) * shape.channels + out.channel);
#pragma unroll
      for (int i = 0; i < kWidth<T>; ++i) {
        const float value = to_float(values.value[i]);
        if (!any || value > largest[i] || value != value) {  // a NaN wins
          largest[i] = value;
          which.value[i] = static_cast<std::uint8_t>(3 * dr + dp);
        }
      }
      any = true;
    }
  const std::int64_t at =
      ((out.image * shape.out_height() + out.row) * shape.out_width() + out.place) * shape.channels +
      out.channel;
  Vector<T> result;
#pragma unroll
  for (int i = 0; i < kWidth<T>; ++i) result.value[i] = from_float<T>(largest[i]);
  store_vector(y, at, result);
  *reinterpret_cast<Bytes<T>*>(chosen + at) = which;
}

template <class T>
__global__ void __launch_bounds__(kPoolThreads)
    pool_backward_kernel(PoolShape shape, const T* dy, const T* dy_more, const std::uint8_t* chosen, T* dx) {
  const Spot in = spot_of<T>(shape.images, shape.height, shape.width, shape.channels);
  if (!in.inside) return;
  float sum[kWidth<T>] = {};
  // An even place is the middle of one window, an odd one the end of a window and the beginning of the next.
  for (std::int64_t row = in.row / 2; row <= (in.row + 1) / 2 && row < shape.out_height(); ++row)
    for (std::int64_t place = in.place / 2; place <= (in.place + 1) / 2 && place < shape.out_width();
         ++place) {
      const auto here = static_cast<std::uint8_t>(3 * (in.row - 2 * row + 1) + in.place - 2 * place + 1);
      const std::int64_t at =
          ((in.image * shape.out_height() + row) * shape.out_width() + place) * shape.channels + in.channel;
      const Bytes<T> which = *reinterpret_cast<const Bytes<T>*>(chosen + at);
      const Vector<T> gradient = load_vector(dy, at);
      Vector<T> more{};
      if (dy_more != nullptr) more = load_vector(dy_more, at);
#pragma unroll
      for (int i = 0; i < kWidth<T>; ++i)
        if (which.value[i] == here) sum[i] += to_float(gradient.value[i]) + to_float(more.value[i]);
    }
  Vector<T> result;
#pragma unroll
  for (int i = 0; i < kWidth<T>; ++i) result.value[i] = from_float<T>(sum[i]);
  store_vector(dx,
               ((in.image * shape.height + in.row) * shape.width + in.place) * shape.channels + in.channel,
               result);
}

template <class T>
Launch pool_launch(const char* name, std::int64_t elements, cudaStream_t stream) {
  const std::int64_t vectors = elements / kWidth<T>;
  if (vectors >= std::int64_t{1} << 31) throw std::logic_error(std::string(name) + ": 2^31 vectors or more");
  return {name, dim3(static_cast<unsigned>((vectors + kPoolThreads - 1) / kPoolThreads)), kPoolThreads,
          stream};
}

}  // namespace

void max_pool_forward(Element element, const PoolShape& shape, const void* x, void* y, std::uint8_t* chosen,
                      cudaStream_t stream) {
  with_element(element, [&]<class T>(T) {
    const std::int64_t elements = shape.images * shape.out_height() * shape.out_width() * shape.channels;
    launch(pool_launch<T>("max_pool_forward", elements, stream), &pool_kernel<T>, shape,
           static_cast<const T*>(x), static_cast<T*>(y), chosen);
  });
}

void max_pool_backward(Element element, const PoolShape& shape, const MaxPoolBackward& b,
                       cudaStream_t stream) {
  with_element(element, [&]<class T>(T) {
    const std::int64_t elements = shape.images * shape.height * shape.width * shape.channels;
    launch(pool_launch<T>("max_pool_backward", elements, stream), &pool_backward_kernel<T>, shape,
           static_cast<const T*>(b.dy), static_cast<const T*>(b.dy_more), b.chosen, static_cast<T*>(b.dx));
  });
}

}  // namespace lockstep::gpu
