// Passes over a tensor of rows, with sums of its columns on the way: what batch norm, GELU and biases need.
//
// A block of 256 threads takes a tile of columns (up to 32 vectors of 16 bytes) and a chunk of rows. A thread
// keeps its vector's column and goes down the chunk, so that what belongs to a column is read once. The sums
// of a chunk are added up in the block along a tree and written to partial[sum][chunk][column]; `fold`
// (fold.cuh) adds up the chunks. Tiles and chunks follow from the shape alone, so every sum has one order:
// the same bits each time.
//
// A pass is a struct:
//   using Element = …;  static constexpr int kSums = …;
//   static constexpr int kUnroll = …;                   rows under way at once, to hide what reading takes
//   static constexpr bool kBackwards = …;               begins with the last rows, which whoever wrote them
//   wrote last struct Column { … };  Column column(c)              what a thread keeps of its columns c … c +
//   width - 1 struct Loaded { … };  Loaded load(column, at)       what it reads of an element's place `at` =
//   row × columns + c void use(loaded, column, at, sums)                  what it writes, and adds to float
//   sums[kSums][width]
#pragma once

#include <algorithm>

#include "models/cuda/column_tiles.h"
#include "models/cuda/launch.cuh"
#include "models/cuda/vector.cuh"

namespace lockstep::gpu {

// A pass without sums has none of this, which an array of nothing would not be.
template <class Pass>
inline constexpr int kSumRows = Pass::kSums > 0 ? Pass::kSums : 1;

template <class Pass>
__global__ void __launch_bounds__(kPassThreads) column_pass(Pass pass, ColumnTiles tiles, float* partial) {
  using T = typename Pass::Element;
  constexpr int kUnroll = Pass::kUnroll;
  const int lane = static_cast<int>(threadIdx.x) & (tiles.tile_vectors - 1);
  const int first = static_cast<int>(threadIdx.x) / tiles.tile_vectors;
  const int stride = kPassThreads / tiles.tile_vectors;
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.y) * tiles.tile_vectors + lane) * kWidth<T>;
  const bool inside = c < tiles.columns;
  // What the kernel before wrote last is still in the cache: the first blocks may begin there.
  const std::int64_t chunk = Pass::kBackwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const std::int64_t begin = chunk * tiles.chunk_rows;
  const std::int64_t end = begin + tiles.chunk_rows < tiles.rows ? begin + tiles.chunk_rows : tiles.rows;

  float sums[kSumRows<Pass>][kWidth<T>] = {};
  if (inside) {
    const typename Pass::Column column = pass.column(c);
    for (std::int64_t row = begin + first; row < end; row += kUnroll * stride) {
      typename Pass::Loaded loaded[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (row + u * stride < end) loaded[u] = pass.load(column, (row + u * stride) * tiles.columns + c);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (row + u * stride < end) pass.use(loaded[u], column, (row + u * stride) * tiles.columns + c, sums);
    }
  }
  if constexpr (Pass::kSums > 0) {
    __shared__ float shared[Pass::kSums * kWidth<T>][kPassThreads];
    for (int s = 0; s < Pass::kSums; ++s)
      for (int i = 0; i < kWidth<T>; ++i) shared[s * kWidth<T> + i][threadIdx.x] = sums[s][i];
    __syncthreads();
    for (int half = stride / 2; half > 0; half /= 2) {
      if (first < half)
        for (int k = 0; k < Pass::kSums * kWidth<T>; ++k)
          shared[k][threadIdx.x] += shared[k][threadIdx.x + half * tiles.tile_vectors];
      __syncthreads();
    }
    if (first == 0 && inside)
      for (int s = 0; s < Pass::kSums; ++s)
        for (int i = 0; i < kWidth<T>; ++i)
          partial[(static_cast<std::int64_t>(s) * tiles.chunks + chunk) * tiles.columns + c + i] =
              shared[s * kWidth<T> + i][threadIdx.x];
  }
}

// `partial`: kSums × chunks × columns floats; null without sums.
template <class Pass>
void run_pass(const char* name, const Pass& pass, const ColumnTiles& tiles, float* partial,
              cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(tiles.chunks), static_cast<unsigned>(tiles.column_tiles));
  launch({name, blocks, kPassThreads, stream}, &column_pass<Pass>, pass, tiles, partial);
}

}  // namespace lockstep::gpu
