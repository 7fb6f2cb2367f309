// Processors whose tiles (AMX) are announced and not described.
//
// Some virtual machines pass on that the processor has AMX (CPUID leaf 7) and hide the leaf that says which
// tiles there are (1Dh). oneDNN, with which libtorch computes in bf16, believes the first and configures none
// of them: its first instruction on a tile ends the process with SIGILL. Told to use AVX-512 at most, it
// computes there like on any other processor.
#pragma once

namespace lockstep {

// What CPUID gives: the highest leaf, EDX of leaf 7, EAX of leaf 1Dh (where there is one).
struct TileLeaves {
  unsigned highest = 0;
  unsigned features = 0;
  unsigned palettes = 0;
};
bool are_half_hidden(const TileLeaves& leaves);

// Sets ONEDNN_MAX_CPU_ISA, which oneDNN reads when it is first used, on such a processor and unless the user
// has set it. Returns whether it did. Whoever links a strategy has called it before main().
bool avoid_half_hidden_tiles();

}  // namespace lockstep
