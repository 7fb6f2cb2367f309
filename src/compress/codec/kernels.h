// SIMD under the codecs, by run-time dispatch: each works on a few elements that are in the cache already.
// The bits are those of the formulas below for every instruction set: nothing is fused, nothing is left to
// how a processor treats NaN, and sums have a fixed order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compress/codec/into.h"

namespace lockstep::codec_kernel {

// A block has a scale of its own: so many elements, counted from the tensor's first one.
inline constexpr std::size_t kBlock = 512;
// Kernels work on whole groups; a tensor's last elements are padded.
inline constexpr std::size_t kGroup = 64;

constexpr std::size_t padded(std::size_t elements) { return (elements + kGroup - 1) / kGroup * kGroup; }

// Which instruction set is used: as Highway names it.
const char* target_name();

// In all that follows `count` is a multiple of kGroup; memory need not be aligned.

// The largest bits of a magnitude: ordered as the numbers are, an infinity above them, and NaN above that.
std::uint32_t largest_magnitude(const float* values, std::size_t count);
// In f64: element i joins the i % 16th of 16 sums, which are then added in pairs. Finite for finite values.
double sum_of_magnitudes(const float* values, std::size_t count);
double sum_of_squares(const float* values, std::size_t count);

// 8 bits: the integer nearest to value * inverse (ties to even), at most 2^22 in magnitude; its lowest byte.
void to_int8(const float* values, std::size_t count, float inverse, std::uint8_t* codes);
void from_int8(const std::uint8_t* codes, std::size_t count, float step, float* values, Into into);

// 1 bit: the sign bit of element i is bit i % 8 of byte i / 8; decoded it is -magnitude or +magnitude.
void to_signs(const float* values, std::size_t count, std::uint8_t* bits);
void from_signs(const std::uint8_t* bits, std::size_t count, float magnitude, float* values, Into into);

// fp8: sign, exponent, mantissa of the float nearest to value * inverse (ties to even), which is at most
// `largest` in magnitude, a number of the type.
enum class Fp8 { e4m3, e5m2 };
void to_fp8(Fp8 type, const float* values, std::size_t count, float inverse, float largest,
            std::uint8_t* codes);
void from_fp8(Fp8 type, const std::uint8_t* codes, std::size_t count, float scale, float* values, Into into);

// Random numbers of a tensor's elements: Philox4x32-10 (Salmon et al. 2011). Element i has word i % 64 / 16
// of the counter (i / 64 * 16 + i % 16, salt), so that any vector of 4, 8 or 16 elements is one of the
// generator's outputs.
struct ElementRandom {
  std::uint32_t key[2] = {};
  std::uint32_t salt[2] = {};
};
// Those of group `group`, elements 64 * group to 64 * group + 63.
void random_words(const ElementRandom& random, std::uint64_t group, std::uint32_t* words);

// Levels: p = min(|value| * inverse, levels) is rounded down, or up with probability p - floor(p) (up where
// the element's random 24 bits / 2^24 are below it). The code is levels + sign * rounded, at most 2 * levels
// <= 254. first: the element that values[0] is, a multiple of kGroup.
void to_levels(const float* values, std::size_t count, float inverse, int levels, const ElementRandom& random,
               std::uint64_t first, std::uint8_t* codes);
// (code - levels) * step. Whether all codes were at most 2 * levels.
bool from_levels(const std::uint8_t* codes, std::size_t count, int levels, float step, float* values,
                 Into into);

// Codes of `bits` bits as planes: of each group eight bytes of everybody's bit 0, eight of bit 1, and so on;
// within a plane as to_signs() does.
void to_planes(const std::uint8_t* codes, std::size_t count, int bits, std::uint8_t* planes);
void from_planes(const std::uint8_t* planes, std::size_t count, int bits, std::uint8_t* codes);

// Top-k. Writes the indices of elements whose magnitude's bits are at least `bits`, in order, and returns how
// many; `indices` has room for those and kIndexSlack more. Any count.
inline constexpr std::size_t kIndexSlack = 16;
std::size_t indices_from(const float* values, std::size_t count, std::uint32_t bits, std::uint32_t* indices);

}  // namespace lockstep::codec_kernel
