// A typed error as plain bytes: it is posted in shared memory and sent over wires, and thrown again there.
#pragma once

#include <cstdint>
#include <span>

#include "comm/call/rank_mask.h"
#include "lockstep/base/error.h"

namespace lockstep {

struct FailureRecord {
  std::int32_t kind;       // ErrorKind
  std::int32_t rank;       // of PeerError, else -1
  RankMask missing;        // of TimeoutError
  std::int32_t by_number;  // 1: rank and missing are numbers in the group; 0: what the ranks are called
  char text[1020];
};

FailureRecord record_of(const Error& error);
// The same by the ranks' numbers in a group where rank r is called names[r]; as it is when it speaks of
// others.
FailureRecord numbered(const FailureRecord& record, std::span<const int> names);
// And back, among ranks that may have other names here.
FailureRecord named(const FailureRecord& record, std::span<const int> names);
// Throws the error. Values that are none of ours (it may come from a wire) make a SystemError.
[[noreturn]] void throw_record(const FailureRecord& record);

}  // namespace lockstep
