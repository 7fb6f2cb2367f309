#include <algorithm>
#include <string>

#include "comm/cuda/check.h"
#include "comm/cuda/elements.cuh"
#include "comm/cuda/reduce.h"
#include "lockstep/base/error.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kWidth = 4;  // elements a thread and turn: 16 bytes of f32

template <class From, class To>
__global__ void __launch_bounds__(kThreads)
    convert(void* out, const void* in, std::size_t packs, std::size_t count) {
  using I = typename From::Element;
  using O = typename To::Element;
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * kThreads;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (std::size_t i = first; i < packs; i += threads) {
    const Pack<I, kWidth> x = load<I, kWidth>(in, i);
    Pack<O, kWidth> y;
#pragma unroll
    for (int w = 0; w < kWidth; ++w) y.at[w] = To::encode(From::decode(x.at[w]));
    store(out, i, y);
  }
  for (std::size_t i = packs * kWidth + first; i < count; i += threads)
    static_cast<O*>(out)[i] = To::encode(From::decode(static_cast<const I*>(in)[i]));
}

template <class From, class To>
void launch(void* out, const void* in, std::size_t count, const DeviceStream& stream) {
  if (count == 0) return;
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  const std::size_t packs = aligned(out) && aligned(in) ? count / kWidth : 0;
  const std::size_t threads = packs > 0 ? packs : count;
  const auto blocks = static_cast<unsigned>(
      std::clamp((threads + kThreads - 1) / kThreads, std::size_t{1}, std::size_t{1} << 20));
  const OnDevice on(stream.device.index);
  convert<From, To><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(out, in, packs, count);
  check(cudaGetLastError(), "the launch of a conversion", stream.device.index);
}

void refuse(const char* what, DType dtype) {
  throw UsageError(std::string(what) + " " + to_string(dtype) + "; accepted: f16, bf16");
}

}  // namespace

void widen(void* out, const void* in, std::size_t count, DType from, const DeviceStream& stream) {
  if (from == DType::f16) return launch<F16, Plain<float>>(out, in, count, stream);
  if (from == DType::bf16) return launch<Bf16, Plain<float>>(out, in, count, stream);
  refuse("widening of", from);
}

void narrow(void* out, const void* in, std::size_t count, DType to, const DeviceStream& stream) {
  if (to == DType::f16) return launch<Plain<float>, F16>(out, in, count, stream);
  if (to == DType::bf16) return launch<Plain<float>, Bf16>(out, in, count, stream);
  refuse("narrowing to", to);
}

}  // namespace lockstep::cuda
