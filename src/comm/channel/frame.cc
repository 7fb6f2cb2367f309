#include "comm/channel/frame.h"

#include <bit>
#include <cstring>

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

constexpr std::uint32_t kFrameMagic = 0x32534c4b;  // and the version of the format

// As it lies on the wire: no padding.
struct Wire {
  std::uint32_t magic;
  std::uint8_t kind;
  std::uint8_t zero[3];
  std::uint64_t bytes;
  CallCard card;
};
static_assert(sizeof(Wire) == kFrameHeaderBytes);

bool length_fits(FrameKind kind, std::uint64_t bytes) {
  switch (kind) {
    case FrameKind::data:
    case FrameKind::message: return bytes <= kMostPayload;
    case FrameKind::status: return bytes == sizeof(WaitStatus);
    case FrameKind::failure: return bytes == sizeof(FailureRecord);
    case FrameKind::leave:
    case FrameKind::join: return bytes == 0;
  }
  return false;
}

}  // namespace

std::array<std::byte, kFrameHeaderBytes> write_header(const FrameHeader& header) {
  Wire wire{};
  wire.magic = kFrameMagic;
  wire.kind = static_cast<std::uint8_t>(header.kind);
  wire.bytes = header.bytes;
  wire.card = header.card;
  return std::bit_cast<std::array<std::byte, kFrameHeaderBytes>>(wire);
}

std::optional<FrameHeader> read_header(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  Wire wire;
  std::memcpy(&wire, bytes.data(), sizeof wire);
  if (wire.magic != kFrameMagic) return std::nullopt;
  if (wire.zero[0] != 0 || wire.zero[1] != 0 || wire.zero[2] != 0) return std::nullopt;
  const auto kind = static_cast<FrameKind>(wire.kind);
  if (!length_fits(kind, wire.bytes)) return std::nullopt;
  return FrameHeader{.kind = kind, .bytes = wire.bytes, .card = wire.card};
}

}  // namespace lockstep
