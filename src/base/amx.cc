#include "base/amx.h"

#include <cstdlib>

#include "base/environment.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace lockstep {
namespace {

constexpr std::uint32_t kTileLeaf = 0x1d;
constexpr std::uint32_t kAmxTile = 1U << 24;

}  // namespace

AmxClaims read_amx_claims() {
  AmxClaims claims;
#ifdef __x86_64__
  claims.highest_leaf = __get_cpuid_max(0, nullptr);
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) claims.features = edx;
  if (__get_cpuid_count(kTileLeaf, 0, &eax, &ebx, &ecx, &edx) != 0) claims.palettes = eax;
#endif
  return claims;
}

bool has_tiles_it_does_not_describe(const AmxClaims& claims) {
  return (claims.features & kAmxTile) != 0 && (claims.highest_leaf < kTileLeaf || claims.palettes == 0);
}

bool avoid_undescribed_amx(const char* below_amx) noexcept {
  if (read_variable("ONEDNN_MAX_CPU_ISA") || read_variable("DNNL_MAX_CPU_ISA")) return false;
  return has_tiles_it_does_not_describe(read_amx_claims()) &&
         ::setenv("ONEDNN_MAX_CPU_ISA", below_amx, /*overwrite=*/0) == 0;
}

}  // namespace lockstep
