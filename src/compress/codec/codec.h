// Gradients in fewer bytes: methods of compression as pure functions of one tensor, without groups and
// without libtorch. The exchanges (compress/) decide who sends what to whom, keep errors and momentum, and
// add up.
//
//   const auto codec = make_codec("topk:0.01");
//   std::vector<std::byte> payload(codec->payload_bytes(values.size()));
//   codec->encode(values, {.seed = 1, .step = 7, .subtree = 0, .parameter = hash}, payload);
//   codec->decode_add(payload, sum);                     // sum[i] += what arrived
//
// Promises that every codec keeps:
//  - Same bits. A payload is a function of (values, key, method): not of the instruction set, the thread or
//  the
//    machine. Decoding gives the same bits everywhere too, and what is decoded is rounded to f32 before it is
//    added.
//  - Fixed size. payload_bytes(count) is a function of the count and the method, so that every rank knows it.
//  - Finite numbers decode to finite numbers. Where a NaN or an infinity is among the values, the payload
//  decodes to
//    NaN for the whole block (int8, fp8, qsgd, onebit) or tensor (terngrad) that holds it; top-k takes it for
//    larger than every number and sends it as it is. Nothing becomes a plausible number on the way.
//  - Hostile bytes do no harm. A payload of a wrong size, or one that no encode() makes (an index beyond the
//    tensor, a negative scale), is a MismatchError; `values` may hold anything then, memory beside it is not
//    touched.
//
// Each method is described where it is: onebit.cc, int8.cc, fp8.cc, qsgd.cc, terngrad.cc, topk.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compress/codec/into.h"

namespace lockstep {

// What a codec's random numbers come from, besides the element: the same whoever carries the subtree.
struct CodecKey {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  int subtree = 0;
  std::uint64_t parameter = 0;  // a hash of its name
};

// One method with its options. Immutable, so that threads may share it; one tensor at a time.
class Codec {
 public:
  virtual ~Codec() = default;

  virtual std::string name() const = 0;  // as make_codec() takes it: "topk:0.01"
  virtual std::size_t payload_bytes(std::size_t count) const = 0;
  // What is sent is off on average (1 bit, top-k), so that what was not sent should be added to the next
  // step's values; else it is right on average, or off by a rounding.
  virtual bool wants_error_feedback() const = 0;

  // payload.size() is payload_bytes(values.size()).
  void encode(std::span<const float> values, const CodecKey& key, std::span<std::byte> payload) const;
  void decode(std::span<const std::byte> payload, std::span<float> values) const;  // overwrites all
  void decode_add(std::span<const std::byte> payload,
                  std::span<float> values) const;  // values[i] += decoded[i]

  // A part of a tensor of `count` elements, for who needs that alone (reduce-scatter): its elements `first`
  // to first + values.size(), from the whole tensor's payload. `first` is a multiple of granularity(); the
  // part ends at such a multiple or at the tensor's end. The bits are those of the whole.
  void decode_range(std::span<const std::byte> payload, std::size_t count, std::size_t first,
                    std::span<float> values) const;
  void decode_add_range(std::span<const std::byte> payload, std::size_t count, std::size_t first,
                        std::span<float> values) const;
  virtual std::size_t granularity() const = 0;  // elements; 1: parts begin and end anywhere

 private:
  // Sizes are right, and no tensor is empty.
  virtual void do_encode(std::span<const float> values, const CodecKey& key,
                         std::span<std::byte> payload) const = 0;
  virtual void do_decode(std::span<const std::byte> payload, std::size_t count, std::size_t first,
                         std::span<float> values, Into into) const = 0;
  void checked_decode(std::span<const std::byte> payload, std::size_t count, std::size_t first,
                      std::span<float> values, Into into) const;
};

// "fp8", "fp8:e5m2", "int8", "qsgd:16", "topk:0.01", "onebit", "terngrad". UsageError lists what is accepted.
std::unique_ptr<Codec> make_codec(std::string_view text);

// One of each, as make_codec() takes them: for benchmarks, tests and help.
std::vector<std::string> codec_examples();

}  // namespace lockstep
