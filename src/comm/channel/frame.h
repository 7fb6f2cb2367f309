// What travels on a TCP connection between two ranks: a header of fixed size, then `bytes` of payload. Every
// byte comes from a network, so nothing is believed before it was checked, and no length that arrived makes
// memory be allocated: payloads go where the receiver expected them, or are bounded by the constants here.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "comm/agree/call_card.h"
#include "comm/call/failure_record.h"
#include "comm/call/rank_mask.h"

namespace lockstep {

enum class FrameKind : std::uint8_t {
  data = 1,     // of a collective
  message = 2,  // of send and recv
  status = 3,   // "I wait in this call, for these ranks": payload WaitStatus
  failure = 4,  // "the group failed": payload FailureRecord
  leave = 5,    // "I take part no more": no payload
  join = 6,     // "I have taken this connection": the first on it from the side that was dialled; no payload
};

// All but what is sent to be received: small, and read whenever it comes.
constexpr bool is_news(FrameKind kind) { return kind != FrameKind::data && kind != FrameKind::message; }

struct FrameHeader {
  FrameKind kind = FrameKind::data;
  std::uint64_t bytes = 0;  // of payload
  CallCard card;            // of the sender's call
};

struct WaitStatus {
  RankMask ranks;  // that are waited for
};

inline constexpr std::size_t kFrameHeaderBytes = 72;
inline constexpr std::size_t kMostNewsBytes = std::max(sizeof(WaitStatus), sizeof(FailureRecord));
inline constexpr std::uint64_t kMostPayload = std::uint64_t{1} << 50;

std::array<std::byte, kFrameHeaderBytes> write_header(const FrameHeader& header);
// Empty when these bytes are no header of ours: wrong magic or version, unknown kind, a length that such a
// frame can't have.
std::optional<FrameHeader> read_header(std::span<const std::byte, kFrameHeaderBytes> bytes);

}  // namespace lockstep
