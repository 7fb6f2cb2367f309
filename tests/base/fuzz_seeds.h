// What a fuzz target begins with. libFuzzer finds them in its corpus, the first argument that is no flag.
#pragma once

#include <fstream>
#include <string>
#include <vector>

namespace lockstep::fuzz {

std::vector<std::string> seeds();  // the target's own: inputs that it takes as good

}  // namespace lockstep::fuzz

#ifdef LOCKSTEP_LIBFUZZER
extern "C" inline int LLVMFuzzerInitialize(int* argc, char*** argv) {
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
