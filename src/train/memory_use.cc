#include "train/memory_use.h"

#include <cstdlib>
#include <fstream>

namespace lockstep {

std::int64_t memory_bytes(const std::string& what) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(what + ":")) return std::atoll(line.c_str() + what.size() + 1) * 1024;
  return 0;
}

}  // namespace lockstep
