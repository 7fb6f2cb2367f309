// AMX that a machine claims and does not describe.
//
// The tiles of AMX are described by CPUID leaf 29. Virtual machines are seen that pass the processor's AMX
// flags and no such leaf: oneDNN, which computes libtorch's 16-bit products and convolutions, then loads an
// empty configuration, and its first instruction on a tile ends the process (SIGILL).
#pragma once

#include <cstdint>

namespace lockstep {

struct AmxClaims {
  std::uint32_t highest_leaf = 0;
  std::uint32_t features = 0;  // EDX of leaf 7
  std::uint32_t palettes = 0;  // EAX of leaf 29, where there is one: how many ways there are to cut tiles
};

AmxClaims read_amx_claims();  // all 0 on processors that have no CPUID

bool has_tiles_it_does_not_describe(const AmxClaims& claims);

// The most that the oneDNN of a libtorch has below AMX: the older one knows no AVX512-FP16, and ignores names
// that it doesn't know.
constexpr const char* below_amx(int torch_major) {
  return torch_major >= 2 ? "AVX512_CORE_FP16" : "AVX512_CORE_BF16";
}

// Tells oneDNN, by ONEDNN_MAX_CPU_ISA, to do without AMX where tiles are not described; a value that is set
// already stays. Has an effect before oneDNN is first used, and changes the environment: before main.
// True where it was told.
bool avoid_undescribed_amx(const char* below_amx) noexcept;

}  // namespace lockstep
