#include "comm/failure_record.h"

#include <cstring>

namespace lockstep {

FailureRecord record_of(const Error& error) {
  FailureRecord record{};
  record.kind = static_cast<std::int32_t>(error.kind());
  record.rank = -1;
  if (const auto* peer = dynamic_cast<const PeerError*>(&error)) record.rank = peer->rank();
  if (const auto* timeout = dynamic_cast<const TimeoutError*>(&error))
    for (int r : timeout->missing())
      if (r >= 0 && r < 256) record.missing[r / 64] |= std::uint64_t{1} << (r % 64);
  std::strncpy(record.text, error.what(), sizeof(record.text) - 1);
  return record;
}

void throw_record(const FailureRecord& record) {
  std::string text(record.text, ::strnlen(record.text, sizeof(record.text)));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  switch (static_cast<ErrorKind>(record.kind)) {
    case ErrorKind::peer: throw PeerError(record.rank, text);
    case ErrorKind::mismatch: throw MismatchError(text);
    case ErrorKind::usage: throw UsageError(text);
    case ErrorKind::timeout: {
      std::vector<int> missing;
      for (int r = 0; r < 256; ++r)
        if ((record.missing[r / 64] >> (r % 64) & 1U) != 0) missing.push_back(r);
      throw TimeoutError(std::move(missing), text);
    }
    case ErrorKind::system: break;
  }
  throw SystemError(text);
}

}  // namespace lockstep
