// What a fuzz target consists of, and its door for libFuzzer. For one source file of a program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::fuzz {

// Both the target's own.
void one(std::string_view input);  // aborts when something is wrong
std::vector<std::string> seeds();  // inputs that it takes as good

}  // namespace lockstep::fuzz

#ifdef LOCKSTEP_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::fuzz::one({reinterpret_cast<const char*>(data), size});
  return 0;
}

// The seeds go to the corpus, the first argument that is no flag.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    if ((*argv)[i][0] == '-') continue;
    int number = 0;
    for (const std::string& seed : lockstep::fuzz::seeds())
      std::ofstream((*argv)[i] + ("/seed" + std::to_string(number++)), std::ios::binary) << seed;
    break;
  }
  return 0;
}
#endif
