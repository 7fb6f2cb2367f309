// fp8, fp8:e5m2: 8-bit floats with a scale a block.
//
// Algorithm. Per block of 512 elements: scale = the smallest power of two for which largest magnitude / scale
// is a
//            number of the type (at most 448 for e4m3, 57344 for e5m2), 2^-126 at least. Each element becomes
//            the number of the type nearest to value / scale (ties to even), its subnormal numbers among
//            them. Decoded: number * scale, which is exact. e4m3 has 4 bits for the exponent and 3 for the
//            mantissa, e5m2 has 5 and 2: numbers as in Micikevicius et al., "FP8 Formats for Deep Learning"
//            (2022). NaN and infinity of the types are not used.
// Payload.   Per block: scale (f32), then a byte an element: sign, exponent, mantissa. 3.97 × less.
// Bias.      A rounding: off by at most 1 / 16 of each element (e5m2: 1 / 8) down to the subnormal numbers,
// by
//            2^-10 (2^-17) of the scale below. Small elements keep their relative precision, unlike int8's.
//            No error feedback.
// Not finite. A block with a NaN or an infinity has the scale NaN, so all of it decodes to NaN.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "compress/codec/block_codec.h"
#include "compress/codec/methods.h"

namespace lockstep {
namespace {

using codec_kernel::Fp8;

class Fp8Codec final : public BlockCodec {
 public:
  explicit Fp8Codec(Fp8 type) : type_(type) {}
  std::string name() const override { return type_ == Fp8::e4m3 ? "fp8" : "fp8:e5m2"; }
  bool wants_error_feedback() const override { return false; }

 private:
  std::size_t block_bytes(std::size_t elements) const override { return kScaleBytes + elements; }

  void encode_block(const float* values, std::size_t elements, const Place&,
                    std::byte* payload) const override {
    const std::size_t count = codec_kernel::padded(elements);
    auto* const codes = reinterpret_cast<std::uint8_t*>(payload + kScaleBytes);
    const std::uint32_t largest = codec_kernel::largest_magnitude(values, count);
    if (largest >= std::bit_cast<std::uint32_t>(std::numeric_limits<float>::infinity())) {
      write_scale(std::numeric_limits<float>::quiet_NaN(), payload);
      std::memset(codes, 0, elements);
      return;
    }
    // The types' largest numbers are 1.75 * 2^8 and 1.75 * 2^15.
    const int top = type_ == Fp8::e4m3 ? 8 : 15;
    const bool above = (largest & 0x7fffff) > 0x600000;  // the mantissa is above 1.75
    const int exponent = std::max(static_cast<int>(largest >> 23) - 127 - top + (above ? 1 : 0), -126);
    // Where the largest is beyond 1.75 * 2^127, what rounds up to 2^128 would decode to infinity: the largest
    // number of the type below that is taken, 1.875 * 2^127 (e4m3) or 1.75 * 2^127 (e5m2).
    const bool at_the_end = exponent + top > 127;
    const float most = at_the_end ? (type_ == Fp8::e4m3 ? 0x1.ep7F : 0x1.cp14F) : power(top) * 1.75F;
    write_scale(power(exponent), payload);
    codec_kernel::to_fp8(type_, values, count, power(-exponent), most, codes);
  }

  void decode_block(const std::byte* payload, std::size_t elements, float* values, Into into) const override {
    codec_kernel::from_fp8(type_, reinterpret_cast<const std::uint8_t*>(payload + kScaleBytes),
                           codec_kernel::padded(elements), read_scale(payload, *this), values, into);
  }

  static float power(int exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
  }

  Fp8 type_;
};

}  // namespace

std::unique_ptr<Codec> fp8_codec(Fp8 type) { return std::make_unique<Fp8Codec>(type); }

}  // namespace lockstep
