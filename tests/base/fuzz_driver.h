// A program around a fuzz target. With libFuzzer that is libFuzzer's, which begins with the target's
// seeds; otherwise a plain one, which mutates these always in the same way: one of the fast tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/fuzz_target.h"
#include "lockstep/base/random.h"

namespace lockstep::fuzz {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

inline bool accepted = false;  // set by the target: the input, or a part of it, was taken as good

// One to four changes: a bit, a byte, a piece cut out or doubled, the end cut off.
inline std::string mutate(std::string input, RandomStream& random) {
  for (std::uint64_t changes = random.below(5); changes > 0; --changes) {
    const std::size_t at = random.below(input.size() + 1);
    switch (random.below(5)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << random.below(8)));
        break;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(random.below(256));
        break;
      case 2: input.erase(at, random.below(8)); break;
      case 3: input.insert(at, input.substr(at, random.below(40))); break;
      default: input.resize(at); break;
    }
  }
  return input;
}

// A text in which a value of JSON, if there is one, is one of lists or objects in each other: few of them, or
// more than a stack holds.
inline std::string nest(const std::string& input, RandomStream& random) {
  const std::size_t depth = random.below(2) == 0 ? random.below(100) : 200'000;
  const bool lists = random.below(2) == 0;
  std::string value;
  for (std::size_t i = 0; i < depth; ++i) value += lists ? "[" : "{\"a\":";
  value += '0';
  value.append(depth, lists ? ']' : '}');
  const std::size_t colon = input.find(':', random.below(input.size() + 1));
  if (colon == std::string::npos) return value + input;
  const std::size_t end = std::min(input.find_first_of(",}", colon), input.size());
  return input.substr(0, colon + 1) + value + input.substr(end);
}

#ifndef LOCKSTEP_LIBFUZZER
constexpr long kNestedEvery = 64;

inline int run(long rounds) {
  const auto corpus = seeds();
  const auto give = [](const std::string& input) {
    accepted = false;
    one(input);
    return accepted;
  };
  for (const auto& seed : corpus) require(give(seed), "a seed was refused");
  RandomStream random(1, 0, 0), of_nests(2, 0, 0);
  long taken = 0;
  for (long i = 0; i < rounds; ++i) {
    if (give(mutate(corpus[static_cast<std::size_t>(i) % corpus.size()], random))) ++taken;
    if (i % kNestedEvery == 0) give(nest(corpus[of_nests.below(corpus.size())], of_nests));
  }
  std::printf("%ld mutated inputs, %ld accepted\n", rounds, taken);
  // If nothing (or everything) passes, the mutations no longer test anything.
  return taken > rounds / 1000 && taken < rounds / 10 * 9 ? 0 : 1;
}
#endif

}  // namespace lockstep::fuzz

#ifndef LOCKSTEP_LIBFUZZER
int main(int argc, char** argv) { return lockstep::fuzz::run(argc > 1 ? std::atol(argv[1]) : 50000); }
#endif
