#include "lockstep/base/error.h"

#include <system_error>

namespace lockstep {

const char* to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage: return "usage";
    case ErrorKind::peer: return "peer";
    case ErrorKind::timeout: return "timeout";
    case ErrorKind::mismatch: return "mismatch";
    case ErrorKind::system: return "system";
  }
  return "unknown";
}

std::string one_line(std::string_view text) {
  std::string line(text);
  for (char& c : line)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  return line;
}

SystemError::SystemError(const std::string& what, int error_number)
    : Error(ErrorKind::system,
            what + ": " + std::error_code(error_number, std::generic_category()).message()) {}

}  // namespace lockstep
