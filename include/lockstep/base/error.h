// The errors of Lockstep: one root, five kinds, each caught by its type.
//
// docs/errors.md says which are worth retrying. A message is one line that names what was wrong,
// where, and what is accepted or what to do next.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

enum class ErrorKind : int { usage = 1, peer = 2, timeout = 3, mismatch = 4, system = 5 };

// "usage", "peer", "timeout", "mismatch", "system".
const char* to_string(ErrorKind kind);

// A message is one line, also when a peer says otherwise: control characters become blanks.
std::string one_line(std::string_view text);

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

// The caller asked for something that can't be: a bad flag, a bad value, a null buffer. Local to the
// caller, not sticky.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(ErrorKind::usage, message) {}
};

// The texts of the next three name ranks by their number in the world (Group::named); rank() and missing()
// are numbers in the group that failed.

// A peer died or left while it was needed. Sticky.
class PeerError : public Error {
 public:
  PeerError(int rank, const std::string& message) : Error(ErrorKind::peer, message), rank_(rank) {}
  int rank() const noexcept { return rank_; }  // the peer's rank in the group that failed

 private:
  int rank_;
};

// An operation ran past its timeout. Sticky.
class TimeoutError : public Error {
 public:
  TimeoutError(std::vector<int> missing, const std::string& message)
      : Error(ErrorKind::timeout, message), missing_(std::move(missing)) {}
  const std::vector<int>& missing() const noexcept { return missing_; }  // ranks that had not come

 private:
  std::vector<int> missing_;
};

// Ranks of one group called different things: sticky. Or their steps, models or replicas differ, which a
// strategy found: not sticky.
class MismatchError : public Error {
 public:
  explicit MismatchError(const std::string& message) : Error(ErrorKind::mismatch, message) {}
};

// The system refused something (memory, a file, a socket).
class SystemError : public Error {
 public:
  explicit SystemError(const std::string& message) : Error(ErrorKind::system, message) {}
  // "what: strerror(error_number)"
  SystemError(const std::string& what, int error_number);
};

}  // namespace lockstep
