// Throws bytes at the manifest of a checkpoint. Whatever they are, the parser either refuses them with a
// UsageError of one line, or they are, byte for byte, what compose_manifest writes for what it gives.
#include <string_view>

#include "base/fuzz_driver.h"
#include "checkpoint/manifest.h"
#include "lockstep/base/error.h"

void lockstep::fuzz::one(std::string_view input) {
  try {
    const Manifest manifest = parse_manifest(input);
    require(compose_manifest(manifest) == input, "a manifest can be read in two ways");
    for (const auto& [name, file] : manifest.files)
      require(!name.empty() && name != ".." && name.find('/') == std::string::npos &&
                  name.find('\0') == std::string::npos,
              "a file outside of the checkpoint");
    accepted = true;
  } catch (const UsageError& refusal) {
    require(std::string_view(refusal.what()).find('\n') == std::string_view::npos,
            "a refusal of several lines");
  }
}

std::vector<std::string> lockstep::fuzz::seeds() {
  const std::string sha256(64, 'a');
  Manifest three{.step = 120, .files = {}};
  three.files["model.safetensors"] = {.bytes = 123456, .sha256 = sha256};
  three.files["state.json"] = {.bytes = 0, .sha256 = sha256};
  three.files["é \"x\"\\"] = {.bytes = UINT64_MAX, .sha256 = ""};
  return {compose_manifest(three), compose_manifest({.step = 0, .files = {}}),
          compose_manifest({.step = -1, .files = {{"a", {.bytes = 1, .sha256 = sha256}}}})};
}
