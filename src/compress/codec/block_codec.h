// Codecs whose tensor is a row of blocks of 512 elements, each with a scale and a payload of its own: blocks
// lie one after the other, so that a part of a tensor is a part of its payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/codec/codec.h"
#include "compress/codec/kernels.h"

namespace lockstep {

class BlockCodec : public Codec {
 public:
  std::size_t payload_bytes(std::size_t count) const final;
  std::size_t granularity() const final { return codec_kernel::kBlock; }

 protected:
  static constexpr std::size_t kScaleBytes = sizeof(float);  // in front of every block

  // What a block's random numbers come from.
  struct Place {
    codec_kernel::ElementRandom random;
    std::uint64_t first;  // element
  };

 private:
  virtual std::size_t block_bytes(std::size_t elements) const = 0;
  // Both see a block as if it were whole: `values` has zeros behind its elements, and room for 512; `payload`
  // has room for block_bytes(512), of which block_bytes(elements) count.
  virtual void encode_block(const float* values, std::size_t elements, const Place& place,
                            std::byte* payload) const = 0;
  virtual void decode_block(const std::byte* payload, std::size_t elements, float* values,
                            Into into) const = 0;

  void do_encode(std::span<const float> values, const CodecKey& key,
                 std::span<std::byte> payload) const final;
  void do_decode(std::span<const std::byte> payload, std::size_t count, std::size_t first,
                 std::span<float> values, Into into) const final;
};

// The scale in front of a block or tensor. NaN stands for one that held a NaN or an infinity; what else is no
// finite number of at least zero is refused (MismatchError).
void write_scale(float scale, std::byte* payload);
float read_scale(const std::byte* payload, const Codec& codec);

// The distance of levels of which `levels` reach `top`, and its inverse. Both are zero where the distance
// would be below the smallest normal number, about 1e-38: such values count as zero.
struct Step {
  float step;
  float inverse;
};
Step step_for(double top, int levels);

// Of what the key names, the same for whoever carries the subtree.
codec_kernel::ElementRandom random_of(const CodecKey& key);

}  // namespace lockstep
