// Whether gradients are finite, by their bits: those of the exponent are all set in infinities and NaN alone.
#include "optim/cuda/launch.h"
#include "optim/cuda/numbers.cuh"
#include "optim/cuda/table.h"
#include "optim/cuda/updates.h"

namespace lockstep::kernel::cuda {
namespace {

struct DataEntry {
  const void* data;
  std::size_t count;
};

template <class Bits, class Arrays>
__global__ void __launch_bounds__(kThreads)
    mark(const __grid_constant__ Arrays arrays, const Bits exponent, std::int32_t* const found) {
  constexpr int kPack = 16 / static_cast<int>(sizeof(Bits));
  const int i = arrays.find(blockIdx.x);
  const std::size_t begin = static_cast<std::size_t>(blockIdx.x - arrays.first_chunk[i]) * kChunkElements;
  const auto length =
      static_cast<unsigned>(min(static_cast<std::size_t>(kChunkElements), arrays.entries[i].count - begin));
  const Bits* const data = static_cast<const Bits*>(arrays.entries[i].data) + begin;
  bool bad = false;
  const unsigned packed = reinterpret_cast<std::uintptr_t>(data) % 16 == 0 ? length / kPack * kPack : 0;
  for (unsigned at = threadIdx.x * kPack; at < packed; at += kThreads * kPack) {
    const auto pack = Pack<Bits, kPack>::load(data + at);
#pragma unroll
    for (int k = 0; k < kPack; ++k) bad = bad || (pack.at[k] & exponent) == exponent;
  }
  for (unsigned at = packed + threadIdx.x; at < length; at += kThreads)
    bad = bad || (data[at] & exponent) == exponent;
  // Whoever finds one writes the same.
  if (__syncthreads_or(bad) != 0 && threadIdx.x == 0) *found = 1;
}

template <class Bits>
void mark_type(std::span<const Buffer> list, DType dtype, Bits exponent, std::int32_t* found,
               const Place& place) {
  by_tables<DataEntry>(
      list.size(),
      [&](std::size_t i) {
        return list[i].dtype == dtype ? DataEntry{list[i].data, list[i].count} : DataEntry{nullptr, 0};
      },
      [&]<class Arrays>(const Arrays& arrays, unsigned chunks, unsigned) {
        mark<Bits, Arrays><<<chunks, kThreads, 0, place.stream()>>>(arrays, exponent, found);
        place.check_launch("launch of the look for gradients that are not finite");
      });
}

}  // namespace

void mark_not_finite(std::span<const Buffer> list, std::int32_t* found) {
  const Place place(list.front().device);
  mark_type<unsigned long long>(list, DType::f64, 0x7ff0000000000000ULL, found, place);
  mark_type<unsigned>(list, DType::f32, 0x7f800000U, found, place);
  mark_type<unsigned short>(list, DType::f16, 0x7c00U, found, place);
  mark_type<unsigned short>(list, DType::bf16, 0x7f80U, found, place);
}

}  // namespace lockstep::kernel::cuda
