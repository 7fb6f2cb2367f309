#include "checkpoint/safetensors_file.h"

#include <array>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

SafetensorsHeader read_header(InputFile& input) {
  std::array<std::byte, kHeaderLengthBytes> prefix{};
  if (input.bytes() < prefix.size())
    throw UsageError("it is no safetensors file: it has " + std::to_string(input.bytes()) + " bytes");
  input.read_all(prefix);
  std::string json(parse_header_length(prefix, input.bytes()), '\0');
  input.read_all(std::as_writable_bytes(std::span(json)));
  return parse_header(json, input.bytes() - prefix.size() - json.size());
}

}  // namespace lockstep
