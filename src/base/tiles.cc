#include "base/tiles.h"

#include <cstdlib>

#include "base/environment.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace lockstep {
namespace {

constexpr unsigned kFeatureLeaf = 7, kTileLeaf = 0x1d;
constexpr unsigned kTiles = 1U << 24;  // AMX-TILE

TileLeaves read_leaves() {
  TileLeaves leaves;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  leaves.highest = __get_cpuid_max(0, nullptr);
  if (__get_cpuid_count(kFeatureLeaf, 0, &a, &b, &c, &d) != 0) leaves.features = d;
  if (__get_cpuid_count(kTileLeaf, 0, &a, &b, &c, &d) != 0) leaves.palettes = a;
#endif
  return leaves;
}

}  // namespace

bool are_half_hidden(const TileLeaves& leaves) {
  return (leaves.features & kTiles) != 0 && (leaves.highest < kTileLeaf || leaves.palettes == 0);
}

bool avoid_half_hidden_tiles() {
  if (!are_half_hidden(read_leaves()) || read_variable("ONEDNN_MAX_CPU_ISA") ||
      read_variable("DNNL_MAX_CPU_ISA"))
    return false;
  return ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", /*overwrite=*/0) == 0;
}

}  // namespace lockstep
