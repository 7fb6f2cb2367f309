// Throws bytes at the header of a safetensors file. Whatever they are, the parser either refuses them with a
// UsageError of one line or gives a header that covers the data exactly and survives being written and read
// again.
//
// In the preset `fuzz` this is a libFuzzer target. Otherwise a plain program mutates a few seeds, always in
// the same way, with pieces of the format's grammar: safetensors_fuzz [ROUNDS].
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/fuzz_target.h"
#include "checkpoint/safetensors_header.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep {
namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "safetensors_fuzz: %s\n", what);
  std::abort();
}

// True when the bytes were accepted as a whole file.
bool try_file(std::string_view file) {
  if (file.size() < kHeaderLengthBytes) return false;
  try {
    std::array<std::byte, kHeaderLengthBytes> prefix{};
    std::memcpy(prefix.data(), file.data(), prefix.size());
    const std::uint64_t length = parse_header_length(prefix, file.size());
    const std::uint64_t data_bytes = file.size() - kHeaderLengthBytes - length;
    const auto header = parse_header(file.substr(kHeaderLengthBytes, length), data_bytes);
    std::uint64_t at = 0;
    for (const TensorEntry& entry : header.tensors) {
      require(entry.begin == at, "an accepted header has a gap or an overlap");
      require(entry.end - entry.begin == tensor_bytes(entry.dtype, entry.shape, entry.name),
              "a size does not fit");
      at = entry.end;
    }
    require(at == data_bytes, "an accepted header does not cover the data");
    const std::string again = compose_header(header);
    require(parse_header(std::string_view(again).substr(kHeaderLengthBytes), data_bytes) == header,
            "an accepted header changes when it is written and read");
    return true;
  } catch (const UsageError& refusal) {
    require(std::string_view(refusal.what()).find('\n') == std::string_view::npos,
            "a refusal of several lines");
    return false;
  }
}

}  // namespace
}  // namespace lockstep

void lockstep::fuzz::one(std::string_view input) { try_file(input); }

namespace lockstep {
namespace {

std::string with_length(const std::string& json, std::size_t data_bytes) {
  const std::uint64_t length = json.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + json + std::string(data_bytes, '\1');
}

}  // namespace

std::vector<std::string> fuzz::seeds() {
  return {
      with_length("{}", 0),
      with_length(
          R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24),
      with_length(R"({"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[3],)"
                  R"("data_offsets":[8,14]},"c":{"dtype":"BOOL","shape":[0,5],"data_offsets":[14,14]}}   )",
                  14),
      with_length(R"({"é\u0000":{"shape":[1,1,1,1],"data_offsets":[0,1],"dtype":"U8"}})", 1),
  };
}

}  // namespace lockstep

#ifndef LOCKSTEP_LIBFUZZER
namespace lockstep {
namespace {

// One to six changes: a bit, a byte, a piece of grammar put in or over, a piece cut out or doubled. Half the
// time the length in front is made to fit again, so that the changes reach the JSON.
std::string mutate(std::string file, RandomStream& random) {
  static constexpr const char* kPieces[] = {"{",
                                            "}",
                                            "[",
                                            "]",
                                            ",",
                                            ":",
                                            "\"",
                                            "-1",
                                            "0",
                                            "1e9",
                                            "null",
                                            "true",
                                            "\\u00",
                                            "\xff",
                                            "\n",
                                            "\"w\"",
                                            "\"a\"",
                                            "[0,0]",
                                            "\"dtype\"",
                                            "\"F16\"",
                                            "18446744073709551615",
                                            "9223372036854775807",
                                            "4294967296",
                                            "\"shape\":[0]",
                                            "\"data_offsets\":[0,24]",
                                            "\"__metadata__\":{}"};
  const std::uint64_t changes = 1 + random.below(6);
  const std::uint64_t tail = file.size() - 8 - static_cast<unsigned char>(file[0]);
  for (std::uint64_t i = 0; i < changes; ++i) {
    const std::size_t at = random.below(file.size() + 1);
    const std::size_t length = random.below(1 + file.size() - at);
    const std::string piece = kPieces[random.below(std::size(kPieces))];
    switch (random.below(6)) {
      case 0:
        if (at < file.size()) file[at] = static_cast<char>(file[at] ^ (1 << random.below(8)));
        break;
      case 1:
        if (at < file.size()) file[at] = static_cast<char>(random.below(256));
        break;
      case 2: file.insert(at, piece); break;
      case 3: file.replace(at, std::min(piece.size(), file.size() - at), piece); break;
      case 4: file.erase(at, std::min<std::size_t>(length, 12)); break;
      default: file.insert(at, file.substr(at, length)); break;
    }
    if (file.size() > 4000) file.resize(4000);
  }
  if (random.below(2) == 0 && file.size() >= 8 + tail) {
    const std::uint64_t length = file.size() - 8 - tail;
    std::memcpy(file.data(), &length, sizeof length);
  }
  return file;
}

// 1 when something is wrong with the test itself.
int run(long rounds) {
  const auto corpus = fuzz::seeds();
  for (const auto& seed : corpus) require(try_file(seed), "a seed was refused");
  RandomStream random(1, 0, 0);
  long accepted = 0;
  for (long i = 0; i < rounds; ++i) {
    if (try_file(mutate(corpus[static_cast<std::size_t>(i) % corpus.size()], random))) ++accepted;
  }
  std::printf("%ld mutated files, %ld accepted\n", rounds, accepted);
  // If nothing (or everything) passes, the mutations no longer test anything.
  return accepted > rounds / 1000 && accepted < rounds / 2 ? 0 : 1;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::run(argc > 1 ? std::atol(argv[1]) : 200000); }
#endif
