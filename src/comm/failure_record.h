// A typed error as plain bytes: it is posted in shared memory and sent over wires, and thrown again there.
#pragma once

#include <cstdint>

#include "lockstep/base/error.h"

namespace lockstep {

struct FailureRecord {
  std::int32_t kind;         // ErrorKind
  std::int32_t rank;         // of PeerError, else -1
  std::uint64_t missing[4];  // bit r: rank r was missing, for ranks below 256
  char text[1024];
};

FailureRecord record_of(const Error& error);
// Throws the error. Values that are none of ours (it may come from a wire) make a SystemError.
[[noreturn]] void throw_record(const FailureRecord& record);

}  // namespace lockstep
