// onebit: a sign an element and a magnitude a block.
//
// Algorithm. Per block of 512 elements: magnitude = mean of the elements' magnitudes; of each element its
// sign bit
//            travels (so -0 is negative). Decoded: sign * magnitude, the scaled sign of Karimireddy et al.,
//            "Error Feedback Fixes SignSGD" (2019), block by block as in Zheng et al.,
//            "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback" (2019). The
//            mean is that of f64 sums in a fixed order, rounded to f32.
// Payload.   Per block: magnitude (f32), then a bit an element, element i in bit i % 8 of byte i / 8; bits
// behind a
//            tensor's last element are zero. 68 bytes for 2048: 30 × less.
// Bias.      Large: all elements of a block come out equally large, so error feedback is wanted.
// Not finite. A block with a NaN or an infinity has the magnitude NaN, so all of it decodes to NaN.
#include <cmath>
#include <cstring>
#include <limits>

#include "compress/codec/block_codec.h"
#include "compress/codec/methods.h"

namespace lockstep {
namespace {

class OneBit final : public BlockCodec {
 public:
  std::string name() const override { return "onebit"; }
  bool wants_error_feedback() const override { return true; }

 private:
  std::size_t block_bytes(std::size_t elements) const override { return kScaleBytes + (elements + 7) / 8; }

  void encode_block(const float* values, std::size_t elements, const Place&,
                    std::byte* payload) const override {
    const std::size_t count = codec_kernel::padded(elements);
    auto* const bits = reinterpret_cast<std::uint8_t*>(payload + kScaleBytes);
    const double sum = codec_kernel::sum_of_magnitudes(values, count);
    if (!std::isfinite(sum)) {
      write_scale(std::numeric_limits<float>::quiet_NaN(), payload);
      std::memset(bits, 0, (elements + 7) / 8);
      return;
    }
    write_scale(static_cast<float>(sum / static_cast<double>(elements)), payload);
    codec_kernel::to_signs(values, count, bits);
  }

  void decode_block(const std::byte* payload, std::size_t elements, float* values, Into into) const override {
    codec_kernel::from_signs(reinterpret_cast<const std::uint8_t*>(payload + kScaleBytes),
                             codec_kernel::padded(elements), read_scale(payload, *this), values, into);
  }
};

}  // namespace

std::unique_ptr<Codec> onebit_codec() { return std::make_unique<OneBit>(); }

}  // namespace lockstep
