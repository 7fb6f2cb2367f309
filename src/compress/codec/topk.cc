// topk:R: the largest elements, exactly.
//
// Algorithm. k = max(1, ⌈R * n⌉) elements of the largest magnitude travel as they are, the others not at all.
// Of
//            equal magnitudes those with the lower indices. Selection is exact, by digits of the magnitude's
//            bits (which have the numbers' order): the first 10 bits of all elements are counted, which gives
//            a bin that holds the k-th largest; elements of that bin and above are gathered, and the k-th
//            largest is found among them by their other bits, 11 and 10. Two passes over the tensor.
// Payload.   k indices (u32, ascending), then k values (f32): 8 k bytes, 50 × less for 0.01.
// Bias.      All that is not among the k is missing, so error feedback is wanted.
// Not finite. Infinities rank above all numbers and NaN above those, so that they travel, as they are, to
// their own
//            places (the first k of them where they are more).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

#include "compress/codec/methods.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::uint32_t magnitude_of(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU; }

// A digit of the magnitudes' 31 bits.
struct Digit {
  int shift;
  int bits;
  std::size_t of(std::uint32_t magnitude) const { return (magnitude >> shift) & ((1U << bits) - 1); }
};
constexpr Digit kFirst{21, 10};  // exponent and two bits: four tables of it fit a first-level cache
constexpr Digit kOthers[] = {{10, 11}, {0, 10}};

struct Bin {
  std::uint32_t number;
  std::size_t rank;   // of the wanted element among the bin's, from 1
  std::size_t above;  // elements in higher bins
  std::size_t in;     // elements in the bin
};

// The bin of the element that is `rank`th from the top.
template <class Counts>
Bin bin_of(const Counts& counts, std::size_t rank) {
  std::size_t above = 0;
  std::size_t bin = counts.size() - 1;
  while (above + counts[bin] < rank) above += counts[bin--];
  return {static_cast<std::uint32_t>(bin), rank - above, above, counts[bin]};
}

Bin first_bin(std::span<const float> values, std::size_t k) {
  // Four tables, so that neighbours that are alike don't wait for each other.
  constexpr std::size_t kBins = 1U << kFirst.bits;
  auto tables = std::array<std::array<std::uint32_t, kBins>, 4>{};
  std::size_t i = 0;
  for (; i + 4 <= values.size(); i += 4)
    for (std::size_t t = 0; t < 4; ++t) ++tables[t][kFirst.of(magnitude_of(values[i + t]))];
  for (; i < values.size(); ++i) ++tables[0][kFirst.of(magnitude_of(values[i]))];
  std::array<std::size_t, kBins> counts{};
  for (const auto& table : tables)
    for (std::size_t bin = 0; bin < kBins; ++bin) counts[bin] += table[bin];
  return bin_of(counts, k);
}

// What is taken: magnitudes above `bits`, and the first `ties` elements of that magnitude.
struct Threshold {
  std::uint32_t bits;
  std::size_t ties;
};

// Among elements of which the first digit is the bin's, or larger.
Threshold threshold_among(std::span<const float> values, std::span<const std::uint32_t> candidates,
                          const Bin& bin) {
  std::uint32_t bits = bin.number << kFirst.shift;
  std::uint32_t known = ~0U << kFirst.shift;
  std::size_t rank = bin.rank;
  for (const Digit& digit : kOthers) {
    auto counts = std::array<std::size_t, 2048>{};
    for (const std::uint32_t index : candidates) {
      const std::uint32_t magnitude = magnitude_of(values[index]);
      if ((magnitude & known) == bits) ++counts[digit.of(magnitude)];
    }
    const Bin here = bin_of(counts, rank);
    rank = here.rank;
    bits |= here.number << digit.shift;
    known |= ((1U << digit.bits) - 1) << digit.shift;
  }
  return {bits, rank};
}

class TopK final : public Codec {
 public:
  explicit TopK(double ratio) : ratio_(ratio) {}
  std::string name() const override { return fmt::format("topk:{}", ratio_); }
  bool wants_error_feedback() const override { return true; }
  std::size_t payload_bytes(std::size_t count) const override { return kept(count) * 8; }
  std::size_t granularity() const override { return 1; }

 private:
  std::size_t kept(std::size_t count) const {
    if (count == 0) return 0;
    // A ratio such as 0.07 is no binary number: what is a part in 10^12 above a whole number is that number.
    const double exact = ratio_ * static_cast<double>(count) * (1 - 1e-12);
    return std::clamp(static_cast<std::size_t>(std::ceil(exact)), std::size_t{1}, count);
  }

  void do_encode(std::span<const float> values, const CodecKey&,
                 std::span<std::byte> payload) const override {
    const std::size_t k = kept(values.size());
    const Bin bin = first_bin(values, k);
    const std::size_t most = bin.above + bin.in;
    const auto candidates = std::make_unique_for_overwrite<std::uint32_t[]>(most + codec_kernel::kIndexSlack);
    const std::size_t found = codec_kernel::indices_from(values.data(), values.size(),
                                                         bin.number << kFirst.shift, candidates.get());
    const std::span<const std::uint32_t> all(candidates.get(), found);
    const Threshold threshold = threshold_among(values, all, bin);
    std::byte* to_index = payload.data();
    std::byte* to_value = payload.data() + k * 4;
    std::size_t ties = threshold.ties;
    for (const std::uint32_t index : all) {
      const std::uint32_t magnitude = magnitude_of(values[index]);
      if (magnitude < threshold.bits) continue;
      if (magnitude == threshold.bits && ties == 0) continue;
      if (magnitude == threshold.bits) --ties;
      std::memcpy(to_index, &index, 4);
      std::memcpy(to_value, &values[index], 4);
      to_index += 4;
      to_value += 4;
    }
  }

  // Everything is looked at before anything is written.
  void expect_indices(const std::byte* indices, std::size_t k, std::size_t count) const {
    std::uint64_t least = 0;
    for (std::size_t i = 0; i < k; ++i) {
      const std::uint32_t index = word(indices, i);
      if (index < least || index >= count)
        throw MismatchError(
            fmt::format("{}: a payload with index {} as number {} of {}; indices ascend and are below {}",
                        name(), index, i, k, count));
      least = std::uint64_t{index} + 1;
    }
  }

  void do_decode(std::span<const std::byte> payload, std::size_t count, std::size_t first,
                 std::span<float> values, Into into) const override {
    const std::size_t k = kept(count);
    const std::byte* const indices = payload.data();
    expect_indices(indices, k, count);
    if (into == Into::overwrite) std::ranges::fill(values, 0.0F);
    for (std::size_t i = first_from(indices, k, first); i < k && word(indices, i) - first < values.size();
         ++i) {
      float& value = values[word(indices, i) - first];
      const auto sent = std::bit_cast<float>(word(indices, k + i));
      value = into == Into::add ? value + sent : sent;
    }
  }

  // Which of the k ascending indices is the first that is not below `element`; k: none.
  static std::size_t first_from(const std::byte* indices, std::size_t k, std::size_t element) {
    std::size_t low = 0;
    for (std::size_t high = k; low < high;) {
      const std::size_t middle = low + (high - low) / 2;
      if (word(indices, middle) < element)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  static std::uint32_t word(const std::byte* words, std::size_t i) {
    std::uint32_t value = 0;
    std::memcpy(&value, words + i * 4, 4);
    return value;
  }

  double ratio_;
};

}  // namespace

std::unique_ptr<Codec> topk_codec(double ratio) { return std::make_unique<TopK>(ratio); }

}  // namespace lockstep
