// How a pass over rows (column_pass.cuh) is cut.
#pragma once

#include <algorithm>
#include <cstdint>

#include "models/cuda/element.h"

namespace lockstep::gpu {

inline constexpr int kPassThreads = 256;

struct ColumnTiles {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  int tile_vectors = 0;  // of 16 bytes, side by side in a block: a power of two, 32 at most
  std::int64_t column_tiles = 0;
  std::int64_t chunk_rows = 0;
  std::int64_t chunks = 0;
};

// Of the shape alone, not of the card: sums keep their order on every one. About 96 KiB a block, so that
// partial sums cost little, and at most 2112 blocks: 16 for each of an H200's 132 multiprocessors.
inline ColumnTiles tiles_of(Rows shape, Element element) {
  constexpr std::int64_t kBlockBytes = 96 * 1024;
  constexpr std::int64_t kMostBlocks = 2112;
  const std::int64_t width = vector_width(element);
  const std::int64_t vectors = (shape.columns + width - 1) / width;
  ColumnTiles tiles{.rows = shape.rows, .columns = shape.columns, .tile_vectors = 1};
  while (tiles.tile_vectors < 32 && tiles.tile_vectors < vectors) tiles.tile_vectors *= 2;
  tiles.column_tiles = (vectors + tiles.tile_vectors - 1) / tiles.tile_vectors;
  const std::int64_t bytes = shape.rows * vectors * 16;
  const std::int64_t blocks = std::clamp<std::int64_t>(bytes / kBlockBytes, 1, kMostBlocks);
  const std::int64_t wanted = std::max<std::int64_t>(1, blocks / tiles.column_tiles);
  tiles.chunk_rows = std::max<std::int64_t>(1, (shape.rows + wanted - 1) / wanted);
  tiles.chunks = std::max<std::int64_t>(1, (shape.rows + tiles.chunk_rows - 1) / tiles.chunk_rows);
  return tiles;
}

}  // namespace lockstep::gpu
