// Random numbers that depend on where they are used and on nothing else: a stream is named by (seed, step,
// lane), so the same drawing comes out whichever worker makes it, and in whatever order.
#pragma once

#include <cstdint>

namespace lockstep {

// A bijection of 64 bits that leaves no visible pattern (the finaliser of SplitMix64).
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The name of a stream as one number: what a lane's generators are seeded with.
constexpr std::uint64_t stream_seed(std::uint64_t seed, std::uint64_t step, std::uint64_t lane = 0) {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const std::uint64_t a = mix_bits(seed + kGolden);
  const std::uint64_t b = mix_bits(a ^ (step + 2 * kGolden));
  return mix_bits(b ^ (lane + 3 * kGolden));
}

// SplitMix64 over one stream. Cheap to make and to copy.
class RandomStream {
 public:
  explicit constexpr RandomStream(std::uint64_t state) : state_(state) {}
  constexpr RandomStream(std::uint64_t seed, std::uint64_t step, std::uint64_t lane)
      : state_(stream_seed(seed, step, lane)) {}

  constexpr std::uint64_t next() { return mix_bits(state_ += 0x9e3779b97f4a7c15u); }
  // In [0, 1), 53 bits.
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  constexpr double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // In [0, n), n > 0. Multiply and shift: biased by less than n / 2^64.
  constexpr std::uint64_t below(std::uint64_t n) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(next()) * n) >> 64);
  }

 private:
  std::uint64_t state_;
};

}  // namespace lockstep
