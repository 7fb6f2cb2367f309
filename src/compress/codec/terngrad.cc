// terngrad: -1, 0 or 1 times the tensor's largest magnitude, right on average.
//
// Algorithm. Wen et al., "TernGrad" (2017), layer by layer: scale = the largest magnitude of the tensor; an
// element
//            becomes sign * scale with probability |value| / scale, else 0. Without the paper's clipping of
//            gradients at 2.5 deviations, which would bias it. Random numbers come from key and element
//            (kernels.h).
// Payload.   Scale (f32), then 2 bits an element in planes (levels.h; the codes are 0, 1, 2 for -1, 0, 1): 16
// × less. Bias.      None, but for roundings of f32 and 24-bit probabilities. Its variance is large: an
// element's is
//            |value| * (scale - |value|), and in a large tensor the scale is several deviations. No error
//            feedback.
// Not finite. A tensor with a NaN or an infinity has the scale NaN, so all of it decodes to NaN.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "compress/codec/block_codec.h"
#include "compress/codec/levels.h"
#include "compress/codec/methods.h"

namespace lockstep {
namespace {

using codec_kernel::kBlock;
constexpr std::size_t kScale = sizeof(float);  // bytes in front

class TernGrad final : public Codec {
 public:
  std::string name() const override { return "terngrad"; }
  bool wants_error_feedback() const override { return false; }
  std::size_t payload_bytes(std::size_t count) const override {
    return count == 0 ? 0 : kScale + planes_.bytes(count);
  }
  std::size_t granularity() const override { return kBlock; }

 private:
  // Calls body(begin, elements) for blocks, which are whole but for the last.
  template <class Body>
  static void by_blocks(std::size_t count, const Body& body) {
    for (std::size_t begin = 0; begin < count; begin += kBlock) body(begin, std::min(kBlock, count - begin));
  }

  static std::uint32_t largest_of(std::span<const float> values) {
    const std::size_t whole = values.size() / codec_kernel::kGroup * codec_kernel::kGroup;
    alignas(64) float tail[codec_kernel::kGroup] = {};
    std::copy(values.begin() + static_cast<std::ptrdiff_t>(whole), values.end(), tail);
    return std::max(codec_kernel::largest_magnitude(values.data(), whole),
                    codec_kernel::largest_magnitude(tail, codec_kernel::kGroup));
  }

  void do_encode(std::span<const float> values, const CodecKey& key,
                 std::span<std::byte> payload) const override {
    const auto largest = std::bit_cast<float>(largest_of(values));
    if (!(largest <= std::numeric_limits<float>::max())) {
      write_scale(std::numeric_limits<float>::quiet_NaN(), payload.data());
      std::ranges::fill(payload.subspan(kScale), std::byte{});
      return;
    }
    const Step step = step_for(static_cast<double>(largest), 1);
    write_scale(step.step, payload.data());
    const codec_kernel::ElementRandom random = random_of(key);
    by_blocks(values.size(), [&](std::size_t begin, std::size_t elements) {
      alignas(64) float tail[kBlock];
      const float* from = values.data() + begin;
      if (elements < kBlock) {
        std::fill(std::copy_n(from, elements, tail), tail + kBlock, 0.0F);
        from = tail;
      }
      planes_.encode(from, elements, step.inverse, random, begin,
                     payload.data() + kScale + planes_.bytes(begin));
    });
  }

  void do_decode(std::span<const std::byte> payload, std::size_t, std::size_t first, std::span<float> values,
                 Into into) const override {
    const float scale = read_scale(payload.data(), *this);
    by_blocks(values.size(), [&](std::size_t begin, std::size_t elements) {
      const std::byte* const from = payload.data() + kScale + planes_.bytes(first + begin);
      float* const to = values.data() + begin;
      if (elements == kBlock) return planes_.decode(from, elements, scale, to, into, *this);
      alignas(64) float tail[kBlock] = {};
      std::copy_n(to, elements, tail);
      planes_.decode(from, elements, scale, tail, into, *this);
      std::copy_n(tail, elements, to);
    });
  }

  LevelPlanes planes_{1};
};

}  // namespace

std::unique_ptr<Codec> terngrad_codec() { return std::make_unique<TernGrad>(); }

}  // namespace lockstep
