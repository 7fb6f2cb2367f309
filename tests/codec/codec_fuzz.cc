// Throws bytes at the decoders, whose payloads come from other ranks: they write to their tensor alone,
// decoding twice gives the same, a part is that of the whole, and what is refused is refused by a
// MismatchError of one line.
//
// An input is a codec's number, a count of elements (two bytes), then the payload.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "base/fuzz_driver.h"
#include "compress/codec/codec.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

const std::vector<std::unique_ptr<Codec>>& codecs() {
  static const auto all = [] {
    std::vector<std::unique_ptr<Codec>> made;
    for (const std::string& name : codec_examples()) made.push_back(make_codec(name));
    return made;
  }();
  return all;
}

constexpr std::size_t kHeader = 3;
constexpr std::size_t kFence = 32;
constexpr float kUntouched = 12345;

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace
}  // namespace lockstep

void lockstep::fuzz::one(std::string_view input) {
  if (input.size() < kHeader) return;
  const auto byte = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(input[i]));
  };
  const Codec& codec = *codecs()[byte(0) % codecs().size()];
  const std::size_t count = byte(1) | byte(2) << 8;
  const auto payload = std::as_bytes(std::span(input.substr(kHeader)));
  std::vector<float> memory(count + 2 * kFence, kUntouched);
  const auto values = std::span(memory).subspan(kFence, count);
  const auto fences_stand = [&] {
    const auto untouched = [](float value) { return value == kUntouched; };
    return std::all_of(memory.begin(), memory.begin() + kFence, untouched) &&
           std::all_of(memory.end() - kFence, memory.end(), untouched);
  };
  try {
    codec.decode(payload, values);
  } catch (const MismatchError& refusal) {
    require(std::string_view(refusal.what()).find('\n') == std::string_view::npos,
            "a refusal of several lines");
    require(fences_stand(), "a payload that was refused changed memory beside the tensor");
    return;
  }
  accepted = true;
  require(fences_stand(), "a payload changed memory beside the tensor");
  require(payload.size() == codec.payload_bytes(count), "a payload of another size was taken");
  std::vector<float> sum(count, -0.0F);  // adding to which changes nothing
  codec.decode_add(payload, sum);
  for (std::size_t i = 0; i < count; ++i)
    require(sum[i] == values[i] || (std::isnan(sum[i]) && std::isnan(values[i])), "adding is not decoding");
  const std::size_t first = count / 2 / codec.granularity() * codec.granularity();
  std::vector<float> part(count - first);
  codec.decode_range(payload, count, first, part);
  require(same_bits(part, values.subspan(first)), "a part is not that of the whole");
}

std::vector<std::string> lockstep::fuzz::seeds() {
  std::vector<std::string> inputs;
  for (std::size_t number = 0; number < codecs().size(); ++number)
    for (const std::size_t count : {0U, 5U, 200U, 1100U}) {
      const Codec& codec = *codecs()[number];
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 37) - 17.5F;
      std::vector<std::byte> payload(codec.payload_bytes(count));
      codec.encode(values, {}, payload);
      std::string input = {static_cast<char>(number), static_cast<char>(count & 0xff),
                           static_cast<char>(count >> 8)};
      for (const std::byte byte : payload) input += static_cast<char>(byte);
      inputs.push_back(input);
    }
  return inputs;
}
