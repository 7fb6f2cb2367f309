#include "comm/call/failure_record.h"

#include <algorithm>
#include <cstring>

namespace lockstep {

void check_group_size(int ranks) {
  if (ranks < 1 || ranks > kMostGroupRanks)
    throw UsageError("a group of " + std::to_string(ranks) + " ranks; accepted: at least one rank, at most " +
                     std::to_string(kMostGroupRanks));
}

FailureRecord record_of(const Error& error) {
  FailureRecord record{};
  record.kind = static_cast<std::int32_t>(error.kind());
  record.rank = -1;
  if (const auto* peer = dynamic_cast<const PeerError*>(&error)) record.rank = peer->rank();
  if (const auto* timeout = dynamic_cast<const TimeoutError*>(&error))
    record.missing = mask_of(timeout->missing());
  std::strncpy(record.text, error.what(), sizeof(record.text) - 1);
  return record;
}

namespace {

// Every rank r as to(r). False when that is negative for one.
template <class To>
bool rename(FailureRecord& record, To&& to) {
  FailureRecord other = record;
  if (record.rank >= 0) other.rank = to(record.rank);
  bool all = record.rank < 0 || other.rank >= 0;
  other.missing = {};
  for (const int r : record.missing.ranks()) {
    const int name = to(r);
    all = all && RankMask::fits(name);
    other.missing.add(name);
  }
  if (all) record = other;
  return all;
}

}  // namespace

FailureRecord numbered(const FailureRecord& record, std::span<const int> names) {
  FailureRecord other = record;
  const bool all = rename(other, [&](int name) {
    const auto at = std::find(names.begin(), names.end(), name);
    return at == names.end() ? -1 : static_cast<int>(at - names.begin());
  });
  other.by_number = all ? 1 : 0;
  return other;
}

FailureRecord named(const FailureRecord& record, std::span<const int> names) {
  FailureRecord other = record;
  const auto size = static_cast<int>(names.size());
  if (record.by_number == 1)
    rename(other, [&](int r) { return r < size ? names[static_cast<std::size_t>(r)] : -1; });
  other.by_number = 0;
  return other;
}

void throw_record(const FailureRecord& record) {
  const std::string text = one_line({record.text, ::strnlen(record.text, sizeof(record.text))});
  switch (static_cast<ErrorKind>(record.kind)) {
    case ErrorKind::peer: throw PeerError(record.rank, text);
    case ErrorKind::mismatch: throw MismatchError(text);
    case ErrorKind::usage: throw UsageError(text);
    case ErrorKind::timeout: throw TimeoutError(record.missing.ranks(), text);
    case ErrorKind::system: break;
  }
  throw SystemError(text);
}

}  // namespace lockstep
