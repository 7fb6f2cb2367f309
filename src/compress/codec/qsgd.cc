// qsgd:S: stochastic levels between zero and a block's norm, right on average.
//
// Algorithm. Alistarh et al., "QSGD" (2017), with the paper's buckets of 512 elements: per block norm = the
// L2 norm,
//            |value| / norm * S is rounded down or up at random so that its mean is right; sign and level
//            travel. Decoded: sign * level * norm / S. The norm is that of f64 sums in a fixed order, at most
//            the largest f32; random numbers come from key and element (kernels.h).
// Payload.   Per block: norm / S (f32), then ⌈log2(2 S + 1)⌉ bits an element in planes (levels.h): 2 bits for
// S = 1,
//            4 for 7, 6 for 16, 8 for 127. The paper's variable-length code would send less where most levels
//            are zero, but how much nobody would know beforehand.
// Bias.      None, but for roundings of f32 and 24-bit probabilities (2^-22 of a level). Its variance is at
// most
//            min(512 / S², √512 / S) times the block's squared norm: large for small S. No error feedback.
// Not finite. A block with a NaN or an infinity has the norm NaN, so all of it decodes to NaN.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "compress/codec/block_codec.h"
#include "compress/codec/levels.h"
#include "compress/codec/methods.h"

namespace lockstep {
namespace {

class Qsgd final : public BlockCodec {
 public:
  explicit Qsgd(int levels) : planes_(levels) {}
  std::string name() const override { return "qsgd:" + std::to_string(planes_.levels()); }
  bool wants_error_feedback() const override { return false; }

 private:
  std::size_t block_bytes(std::size_t elements) const override {
    return kScaleBytes + planes_.bytes(elements);
  }

  void encode_block(const float* values, std::size_t elements, const Place& place,
                    std::byte* payload) const override {
    const double sum = codec_kernel::sum_of_squares(values, codec_kernel::padded(elements));
    if (!std::isfinite(sum)) {
      write_scale(std::numeric_limits<float>::quiet_NaN(), payload);
      std::memset(payload + kScaleBytes, 0, planes_.bytes(elements));
      return;
    }
    const double norm = std::min(std::sqrt(sum), static_cast<double>(FLT_MAX));
    const Step step = step_for(norm, planes_.levels());
    write_scale(step.step, payload);
    planes_.encode(values, elements, step.inverse, place.random, place.first, payload + kScaleBytes);
  }

  void decode_block(const std::byte* payload, std::size_t elements, float* values, Into into) const override {
    planes_.decode(payload + kScaleBytes, elements, read_scale(payload, *this), values, into, *this);
  }

  LevelPlanes planes_;
};

}  // namespace

std::unique_ptr<Codec> qsgd_codec(int levels) { return std::make_unique<Qsgd>(levels); }

}  // namespace lockstep
