// int8: 8-bit integers with a scale a block.
//
// Algorithm. Per block of 512 elements: step = largest magnitude / 127; each element becomes the integer
// nearest to value / step (ties to even). Decoded: integer * step. Payload.   Per block: step (f32), then a
// byte an element, two's complement. Four bytes a block: 3.97 × less. Bias.      A rounding, off by at most
// step / 2, in a fixed direction for a fixed value: 0.4 % of the block's largest
//            element. No error feedback: what is lost does not add up over steps unless gradients repeat
//            themselves.
// Not finite. A block with a NaN or an infinity has the step NaN, so all of it decodes to NaN.
#include <bit>
#include <cstring>
#include <limits>

#include "compress/codec/block_codec.h"
#include "compress/codec/methods.h"

namespace lockstep {
namespace {

constexpr int kLevels = 127;
constexpr std::uint32_t kInfinity = 0x7f800000;  // bits of an f32; NaN has larger ones

class Int8 final : public BlockCodec {
 public:
  std::string name() const override { return "int8"; }
  bool wants_error_feedback() const override { return false; }

 private:
  std::size_t block_bytes(std::size_t elements) const override { return kScaleBytes + elements; }

  void encode_block(const float* values, std::size_t elements, const Place&,
                    std::byte* payload) const override {
    const std::size_t count = codec_kernel::padded(elements);
    auto* const codes = reinterpret_cast<std::uint8_t*>(payload + kScaleBytes);
    const std::uint32_t largest = codec_kernel::largest_magnitude(values, count);
    if (largest >= kInfinity) {
      write_scale(std::numeric_limits<float>::quiet_NaN(), payload);
      std::memset(codes, 0, elements);
      return;
    }
    const Step step = step_for(std::bit_cast<float>(largest), kLevels);
    write_scale(step.step, payload);
    codec_kernel::to_int8(values, count, step.inverse, codes);
  }

  void decode_block(const std::byte* payload, std::size_t elements, float* values, Into into) const override {
    codec_kernel::from_int8(reinterpret_cast<const std::uint8_t*>(payload + kScaleBytes),
                            codec_kernel::padded(elements), read_scale(payload, *this), values, into);
  }
};

}  // namespace

std::unique_ptr<Codec> int8_codec() { return std::make_unique<Int8>(); }

}  // namespace lockstep
