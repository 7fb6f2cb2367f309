// The front door of every codec: sizes are checked here, once.
#include "compress/codec/codec.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Indices in payloads have 32 bits.
constexpr std::size_t kMostElements = std::size_t{1} << 32;

void expect_count(const Codec& codec, std::size_t count) {
  if (count > kMostElements)
    throw UsageError(
        fmt::format("{}: a tensor of {} elements; at most {}", codec.name(), count, kMostElements));
}

}  // namespace

void Codec::encode(std::span<const float> values, const CodecKey& key, std::span<std::byte> payload) const {
  expect_count(*this, values.size());
  if (payload.size() != payload_bytes(values.size()))
    throw UsageError(fmt::format("{}: room for a payload of {} bytes; {} elements make {}", name(),
                                 payload.size(), values.size(), payload_bytes(values.size())));
  if (!values.empty()) do_encode(values, key, payload);
}

void Codec::decode(std::span<const std::byte> payload, std::span<float> values) const {
  checked_decode(payload, values.size(), 0, values, Into::overwrite);
}

void Codec::decode_add(std::span<const std::byte> payload, std::span<float> values) const {
  checked_decode(payload, values.size(), 0, values, Into::add);
}

void Codec::decode_range(std::span<const std::byte> payload, std::size_t count, std::size_t first,
                         std::span<float> values) const {
  checked_decode(payload, count, first, values, Into::overwrite);
}

void Codec::decode_add_range(std::span<const std::byte> payload, std::size_t count, std::size_t first,
                             std::span<float> values) const {
  checked_decode(payload, count, first, values, Into::add);
}

void Codec::checked_decode(std::span<const std::byte> payload, std::size_t count, std::size_t first,
                           std::span<float> values, Into into) const {
  expect_count(*this, count);
  if (payload.size() != payload_bytes(count))
    throw MismatchError(fmt::format("{}: a payload of {} bytes; {} elements make {}", name(), payload.size(),
                                    count, payload_bytes(count)));
  if (first > count || values.size() > count - first)
    throw UsageError(
        fmt::format("{}: elements {} to {} of a tensor of {}", name(), first, first + values.size(), count));
  const std::size_t end = first + values.size();
  if (first % granularity() != 0 || (end % granularity() != 0 && end != count))
    throw UsageError(
        fmt::format("{}: elements {} to {}; a part begins and ends at a multiple of {} or at the end ({})",
                    name(), first, end, granularity(), count));
  if (!values.empty()) do_decode(payload, count, first, values, into);
}

}  // namespace lockstep
